"""The one writer of a log: takes entries at once, writes them behind the caller's back in groups.

`append` never waits for the disk and never raises: where the queue is full the entry is dropped,
and an entry that says how many were dropped follows as soon as there is room. Whoever needs to know
that an entry is in the log asks with `append_durable` or `flush`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from kvward.errors import LedgerError
from kvward.ledger.append import LogAppender
from kvward.ledger.checkpoint import Checkpoint
from kvward.ledger.entry import EntriesDropped, Entry, encode_entry
from kvward.ledger.names import DropReason
from kvward.ledger.note import NoteSigner

QUEUE_ENTRIES = 65_536
LINGER_S = 0.05
RETRY_S = 1.0
_GROUP_ENTRIES = 16_384


def now_unix_ms() -> int:
    """Return the time of the system's clock in milliseconds."""
    return time.time_ns() // 1_000_000


class LedgerWriter:
    """Appends to a log. One for each log, in one process; safe to use from many threads.

    Args:
        folder: Of a log that was begun.
        signer: Of its checkpoints.
        known: A checkpoint kept elsewhere, which the log may not be older than; None to believe
            the folder.
        queue_entries: How many may wait; more are dropped and counted. At least 2.
        linger_s: How long a group waits for more entries, unless somebody waits for it.
        clock: Milliseconds of Unix time, for entries of the writer's own.
    Raises:
        LedgerError: See `LogAppender`.
    Cost:
        A thread. It does not live on in a forked child: open the log after forking.
    """

    def __init__(
        self,
        folder: Path,
        signer: NoteSigner,
        *,
        known: Checkpoint | None,
        queue_entries: int = QUEUE_ENTRIES,
        linger_s: float = LINGER_S,
        clock: Callable[[], int] = now_unix_ms,
    ) -> None:
        self._appender = LogAppender(folder, signer, known=known)
        self._clock = clock
        self._linger_s = linger_s
        self._room = max(2, queue_entries)
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._published = self._appender.checkpoint
        self._next = self._published.size
        self._dropped = 0
        self._waiting = 0
        self._is_closed = self._has_ended = self._is_idle = False
        self._trouble: LedgerError | None = None
        if num_cut := self._appender.num_cut:
            self._enqueue_dropped(DropReason.CUT_AFTER_CRASH, num_cut)
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the last published checkpoint."""
        with self._changed:
            return self._published

    @property
    def num_dropped(self) -> int:
        """Return how many entries were dropped and not yet written down as dropped."""
        with self._changed:
            return self._dropped

    def append(self, entry: Entry) -> int | None:
        """Take an entry, to be written soon. Does not wait and does not raise.

        Returns:
            Its index in the log, should the process live long enough to write it; None when the
            queue was full or the writer closed, and the entry was dropped and counted.
        """
        data = encode_entry(entry)
        with self._changed:
            return self._enqueue(data)

    def append_durable(self, entry: Entry, *, timeout_s: float = 30.0) -> int:
        """Append an entry, and return when it is durable and a published checkpoint covers it.

        Raises:
            LedgerError: It could not be written in time. It may still be written later.
        """
        data, deadline = encode_entry(entry), time.monotonic() + timeout_s
        with self._changed:
            self._waiting += 1
            try:
                self._wait_for(self._has_room, deadline)
                index = self._enqueue(data)
                if index is None:
                    raise self._cannot()
                self._wait_for(lambda: self._published.size > index, deadline)
            finally:
                self._waiting -= 1
        return index

    def flush(self, *, timeout_s: float = 30.0) -> Checkpoint:
        """Return when everything appended so far is durable, with a checkpoint that covers it.

        Raises:
            LedgerError: It could not be written in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            target = self._next
            self._waiting += 1
            try:
                self._wait_for(lambda: self._published.size >= target, deadline)
            finally:
                self._waiting -= 1
            return self._published

    def close(self) -> None:
        """Write what waits, and end. Closing twice does nothing.

        Raises:
            LedgerError: Entries could not be written.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._appender.close()
        if lost := len(self._queue):
            self._queue.clear()
            raise LedgerError(
                f"{lost} entries of the ledger could not be written.",
                hint="Make room on the disk that holds the log.",
            ) from self._trouble

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # What follows is called with the lock held.

    def _has_room(self) -> bool:
        return len(self._queue) < self._room

    def _enqueue(self, data: bytes) -> int | None:
        if self._is_closed or self._has_ended or not self._has_room():
            self._dropped += 1
            return None
        self._queue.append(data)
        self._next += 1
        if self._is_idle or self._waiting or len(self._queue) == self._room // 2:
            self._changed.notify_all()
        return self._next - 1

    def _enqueue_dropped(self, reason: DropReason, count: int) -> None:
        entry = EntriesDropped(at_unix_ms=self._clock(), reason=reason, count=count)
        self._queue.append(encode_entry(entry))
        self._next += 1

    def _wait_for(self, condition: Callable[[], bool], deadline: float) -> None:
        self._changed.notify_all()
        while not condition():
            rest = deadline - time.monotonic()
            if rest <= 0 or self._has_ended or (self._is_closed and not self._queue):
                raise self._cannot()
            self._changed.wait(rest)

    def _cannot(self) -> LedgerError:
        error = LedgerError(
            "The ledger could not be written in time."
            if self._trouble is None
            else self._trouble.message,
            hint="Look at the disk that holds the log; what waits is tried again.",
        )
        error.__cause__ = self._trouble
        return error

    # The thread.

    def _run(self) -> None:
        try:
            while group := self._next_group():
                if not self._write(group):
                    break
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _next_group(self) -> list[bytes]:
        """Return what is to be written next; nothing at the end."""
        with self._changed:
            while not self._queue and not self._is_closed:
                self._is_idle = True
                self._changed.wait()
                self._is_idle = False
            until = time.monotonic() + self._linger_s
            while not (self._waiting or self._is_closed or len(self._queue) * 2 >= self._room):
                rest = until - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(rest)
            return list(islice(self._queue, _GROUP_ENTRIES))

    def _write(self, group: list[bytes]) -> bool:
        """Write a group, or wait before the next try; return whether to go on."""
        try:
            published = self._appender.append(group)
        except LedgerError as exc:
            with self._changed:
                self._trouble = exc
                if not self._is_closed:
                    self._changed.wait(RETRY_S)
                    return True
            return False
        with self._changed:
            for _ in group:
                self._queue.popleft()
            self._published, self._trouble = published, None
            # Before anything else takes the room: what follows in the log comes after the gap.
            if self._dropped:
                self._enqueue_dropped(DropReason.QUEUE_FULL, self._dropped)
                self._dropped = 0
            self._changed.notify_all()
        return True
