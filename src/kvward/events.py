"""Event port: how a lower layer reports upwards without importing metrics or ledger.

The composition root (`kvward.cli`, the gateway) decides where events go. An event holds
pseudonyms and counts only: no prompt, no key, no tenant name.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Protocol


class EventSink(Protocol):
    """Takes events; must not block and must not raise."""

    def emit(self, name: str, /, **fields: str | int) -> None:
        """Record that `name` happened.

        Args:
            name: Dotted name, for example "ward.read-refused".
            fields: Low-cardinality details; pseudonyms and counts only.
        """


class EventCounter:
    """Counts events by name and by their `reason` field. Good enough for one process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def emit(self, name: str, /, **fields: str | int) -> None:
        """Count the event under its name, and under "name:reason" when a reason is given."""
        with self._lock:
            self._counts[name] += 1
            if (reason := fields.get("reason")) is not None:
                self._counts[f"{name}:{reason}"] += 1

    def counts(self) -> dict[str, int]:
        """Return a copy of all counts so far."""
        with self._lock:
            return dict(self._counts)
