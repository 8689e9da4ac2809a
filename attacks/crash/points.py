"""Points of a process at which it can end itself: file operations and SQL statements.

A process that is killed from outside after some time hits the long operations. One that ends
itself at its k-th point hits the gaps between a write, a rename and a commit just as often.
"""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

_FILE_EVENTS = frozenset(
    {
        "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.utime", "os.listdir",
        "os.scandir", "shutil.rmtree",
    }
)  # fmt: skip
_INSTRUCTIONS = 40


class Points:
    """Counts points from `arm` on, and ends the process at one of them.

    Args:
        kill_at: Number of the last point, from 1; None to count only.
        only: Name of the points that are counted; None for all.
        tell: Called with the name of the last point, right before the end.
    """

    def __init__(
        self, kill_at: int | None, *, only: str | None, tell: Callable[[str], None]
    ) -> None:
        self._kill_at = kill_at
        self._only = only
        self._tell = tell
        self._count = 0
        self._is_armed = False

    def install(self) -> None:
        """Watch this process from now on. It cannot be undone, so only in a child."""
        connect = sqlite3.connect

        def watched(*args: Any, **settings: Any) -> sqlite3.Connection:
            connection = connect(*args, **settings)
            connection.set_trace_callback(lambda sql: self.hit("sql " + _first_words(sql)))
            connection.set_progress_handler(lambda: self.hit("sqlite") or 0, _INSTRUCTIONS)
            return connection

        fsync = os.fsync

        def flushed(descriptor: int) -> None:
            self.hit("fsync")
            fsync(descriptor)

        def opened(descriptor: int, *_: Any, **__: Any) -> io.FileIO:
            return _Short(descriptor, self)

        sqlite3.connect = watched  # type: ignore[assignment]
        os.fsync = flushed  # type: ignore[assignment]
        os.fdopen = opened
        sys.addaudithook(self._audited)

    def arm(self) -> None:
        """Begin to count."""
        self._is_armed = True

    def hit(self, name: str) -> None:
        """Be at a point; may not return."""
        if self._is_armed and self._only in (None, name):
            self._count += 1
            if self._count == self._kill_at:
                self._tell(name)
                os.kill(os.getpid(), signal.SIGKILL)

    def _audited(self, event: str, _: object) -> None:
        if event in _FILE_EVENTS:
            self.hit(event)


class _Short(io.FileIO):
    """A file that takes half of what it is given, as files may, with a point in between."""

    def __init__(self, descriptor: int, points: Points) -> None:
        super().__init__(descriptor, "wb")
        self._points = points

    def write(self, data: Any, /) -> int:
        num_bytes = super().write(memoryview(data)[: max(1, len(data) // 2)])
        self._points.hit("write")
        return num_bytes


def _first_words(sql: str) -> str:
    words = sql.split()
    return words[0] if words[0] not in {"PRAGMA", "INSERT", "DELETE"} else " ".join(words[:3])
