"""From events to entries: refusals and failures are counted and written down by windows of time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from kvward.ledger.entry import EventsCounted
from kvward.ledger.names import CountedEvent, CountedReason
from kvward.ledger.writer import LedgerWriter, now_unix_ms

WINDOW_S = 60.0
_REASONS = {reason.value: reason for reason in CountedReason}
_EVENTS = {event.value: event for event in CountedEvent}
ORDINARY = frozenset(
    {
        "gateway.forwarded",
        "gateway.operator",
        "vllm.batch-kept",
        "vllm.hit-offered",
        "vllm.load-late",
        "vllm.load-placed",
        "vllm.load-planned",
        "vllm.lookup-failed",
        "vllm.lookup-full",
        "vllm.lookup-late",
        "vllm.public-not-there",
        "vllm.save-dropped",
        "vllm.transfer-failed",
    }
)
"""Events that are no refusal: ordinary work, and what costs speed only."""


class LedgerSink:
    """Takes events and writes how many there were, by name and reason, when a window ends.

    Implements `kvward.events.EventSink`: it neither blocks nor raises. Of an event's fields it
    takes the reason; a name or reason that is not listed is counted as "other".

    Args:
        writer: Stays the caller's to close, after this.
        window_s: Length of a window in seconds.
        clock: Milliseconds of Unix time.
    """

    def __init__(
        self,
        writer: LedgerWriter,
        *,
        window_s: float = WINDOW_S,
        clock: Callable[[], int] = now_unix_ms,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._counts: Counter[tuple[CountedEvent, CountedReason | None]] = Counter()
        self._lock = threading.Lock()
        self._began_unix_ms = clock()
        self._ended = threading.Event()
        self._window_s = window_s
        self._thread = threading.Thread(target=self._run, name="ledger-sink", daemon=True)
        self._thread.start()

    def emit(self, name: str, /, **fields: str | int) -> None:
        """Count an event."""
        if name in ORDINARY:
            return
        reason = fields.get("reason")
        known = None if reason is None else _REASONS.get(str(reason), CountedReason.OTHER)
        with self._lock:
            self._counts[_EVENTS.get(name, CountedEvent.OTHER), known] += 1

    def write(self) -> int:
        """End the window now; return how many entries it gave."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            began, now = self._began_unix_ms, self._clock()
            self._began_unix_ms = now
        for (name, reason), count in counts.items():
            self._writer.append(
                EventsCounted(
                    at_unix_ms=now,
                    name=name,
                    reason=reason,
                    count=count,
                    window_ms=max(0, now - began),
                )
            )
        return len(counts)

    def close(self) -> None:
        """Write the last window, and end."""
        self._ended.set()
        self._thread.join()
        self.write()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._ended.wait(self._window_s):
            self.write()
