"""What a process inside an engine counted, in a file that somebody outside can read."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from kvward.events import EventCounter

_EVERY_S = 1.0


class EventSpool:
    """Counts events, and writes the counts to a file of this process each second.

    Implements `EventSink`. Losing the file loses counts, nothing else.

    Args:
        folder: Where; None writes nothing.
        role: Of the process, part of the file's name.
    """

    def __init__(self, folder: str | None, *, role: str) -> None:
        self._counter = EventCounter()
        self._path: Path | None = None
        self._written: dict[str, int] = {}
        self._end = threading.Event()
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._path = Path(folder) / f"kvward-vllm-{role}-{os.getpid()}.json"
            self._thread = threading.Thread(target=self._run, name="kvward-events", daemon=True)
            self._thread.start()

    def emit(self, name: str, /, **fields: str | int) -> None:
        """Count an event."""
        self._counter.emit(name, **fields)

    def counts(self) -> dict[str, int]:
        """Return all counts so far."""
        return self._counter.counts()

    def close(self) -> None:
        """Write a last time."""
        if self._path is not None and not self._end.is_set():
            self._end.set()
            self._thread.join()
            self._write()

    def _run(self) -> None:
        while not self._end.wait(_EVERY_S):
            self._write()

    def _write(self) -> None:
        counts = self._counter.counts()
        if self._path is None or counts == self._written:
            return
        partial = self._path.with_suffix(".partial")
        try:
            partial.write_text(json.dumps(counts, indent=1, sort_keys=True))
            partial.replace(self._path)
            self._written = counts
        except OSError:
            # Counting must not stop an engine; the next second may go better.
            return
