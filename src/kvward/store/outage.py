"""How long to leave something alone that did not answer, each tenant for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from cachetools import TTLCache

_MAX_SUBJECTS = 65536


class Outages:
    """Remembers what did not answer lately, so that requests do not queue up behind it.

    Args:
        retry_after_s: How long it is left alone.
        monotonic_s: Clock.
    """

    def __init__(self, *, retry_after_s: float, monotonic_s: Callable[[], float]) -> None:
        self._lock = threading.Lock()
        self._out: TTLCache[Hashable, bool]
        self._out = TTLCache(_MAX_SUBJECTS, retry_after_s, timer=monotonic_s)

    def report(self, subject: Hashable) -> None:
        """Say that it did not answer."""
        with self._lock:
            self._out[subject] = True

    def is_out(self, subject: Hashable) -> bool:
        """Tell whether it is left alone now."""
        with self._lock:
            return subject in self._out
