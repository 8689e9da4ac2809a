"""Clocks that tests can move."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds since 1970, and can be told to let some pass."""

    def __call__(self) -> float:
        """Return the time."""

    def advance(self, duration_s: float) -> None:
        """Let some time pass."""


class ManualClock:
    """A clock that stands still until it is told to go on.

    Args:
        now_unix_s: Where it starts.
    """

    def __init__(self, now_unix_s: float = 1_800_000_000.0) -> None:
        self._now_unix_s = now_unix_s

    def __call__(self) -> float:
        """Return the time."""
        return self._now_unix_s

    def advance(self, duration_s: float) -> None:
        """Move on at once."""
        self._now_unix_s += duration_s


class WaitingClock:
    """The clock of the machine, for stores that expire entries by a clock of their own."""

    def __call__(self) -> float:
        """Return the time."""
        return time.time()

    def advance(self, duration_s: float) -> None:
        """Wait."""
        time.sleep(duration_s)
