"""Which adapter (LoRA) the engine computes with: by content, not by name.

The engine reads an adapter's files when it loads it, which nobody tells us, and may read them again
when it is told to reload in place. So content is known in three cases only: the files are older
than the engine and unchanged since; the operator vouches that files are never changed; or the
engine reloads for every request, and they did not change around it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvward.blocks.files import FileDigests, list_files, newest_change_ns
from kvward.blocks.manifest import AdapterIdentity
from kvward.errors import KvwardError
from kvward.events import EventSink

_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRequest:
    """What a request says about its adapter.

    Attributes:
        number: The engine's own; unique for a loaded adapter.
        folder: Where its files lie.
        is_reloaded: Whether the engine loads it anew for this request.
    """

    number: int
    folder: Path
    is_reloaded: bool


class AdapterFiles:
    """Knows the content of the adapters of one engine. Used by the scheduler's thread only.

    Args:
        started_unix_s: Before the engine loaded anything.
        are_immutable: The operator vouches for it.
        events: Takes "vllm.adapter-unknown" with a reason.
    """

    def __init__(self, *, started_unix_s: float, are_immutable: bool, events: EventSink) -> None:
        self._started_ns = int(started_unix_s * _NANOSECONDS)
        self._are_immutable = are_immutable
        self._events = events
        self._digests = FileDigests()
        self._first: dict[int, bytes] = {}

    def identify(self, request: AdapterRequest) -> AdapterIdentity | None:
        """Return which adapter a request is computed with; None when it cannot be known."""
        try:
            names = list_files(request.folder)
            digest = self._digests.digest(request.folder, names)
            newest = newest_change_ns(request.folder, names)
        except (KvwardError, OSError, ValueError):
            return self._unknown("unreadable")
        if not request.is_reloaded:
            first = self._first.setdefault(request.number, digest)
            if first != digest:
                return self._unknown("changed-on-disk")
            if newest >= self._started_ns and not self._are_immutable:
                return self._unknown("newer-than-the-engine")
        # The scaling is computed from the adapter's own files, so nothing else is applied.
        return AdapterIdentity(digest=digest, scaling="from-files")

    def still(self, request: AdapterRequest, identity: AdapterIdentity) -> Callable[[], bool]:
        """Return a check that the files are what they were, for before anything is kept."""

        def check() -> bool:
            now = self.identify(request)
            return now is not None and now.digest == identity.digest

        return check

    def _unknown(self, reason: str) -> AdapterIdentity | None:
        self._events.emit("vllm.adapter-unknown", reason=reason)
        return None
