"""Entries in the memory of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from kvward.store.backend import (
    Bucket,
    BucketUsage,
    Buffer,
    Capabilities,
    Entry,
    EntryName,
    Room,
)
from kvward.store.backends.index import EntryIndex

_SWEPT_AT_ONCE = 1000


class MemoryBackend:
    """Implements `Backend`.

    Args:
        room: How much it keeps.
        now_unix_s: Clock.
    """

    def __init__(self, room: Room, *, now_unix_s: Callable[[], float] = time.time) -> None:
        self._index = EntryIndex(":memory:", room)
        self._entries: dict[EntryName, tuple[bytes, int]] = {}
        self._lock = threading.Lock()
        self._now = now_unix_s

    @property
    def capabilities(self) -> Capabilities:
        """Return what this backend can promise."""
        return Capabilities(
            protects_shares=True,
            shared_between_processes=False,
            durable=False,
            expires_by_itself=True,
        )

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        """Return the bytes put under each name."""
        now = self._now()
        with self._lock:
            found = [self._entries.get(name) for name in names]
        return [None if hit is None or hit[1] <= now else hit[0] for hit in found]

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        """Keep entries."""
        copies = [bytes(entry.data) for entry in entries]
        kept = []
        with self._lock, self._index.batch():
            self._sweep()
            for entry, data in zip(entries, copies, strict=True):
                admitted, dropped = self._index.admit(
                    entry.name,
                    len(data),
                    expires_unix_s=entry.expires_unix_s,
                    now_unix_s=self._now(),
                )
                for name in dropped:
                    self._entries.pop(name, None)
                if admitted:
                    self._entries[entry.name] = (data, entry.expires_unix_s)
                kept.append(admitted)
        return kept

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        """Tell which names are there."""
        return [data is not None for data in self.get_many(names)]

    def delete_many(self, names: Sequence[EntryName]) -> None:
        """Forget entries."""
        with self._lock, self._index.batch():
            for name in names:
                self._forget(name)

    def purge(self, bucket: Bucket) -> int:
        """Forget a bucket."""
        with self._lock, self._index.batch():
            names = self._index.names(bucket)
            for name in names:
                self._forget(name)
        return len(names)

    def stats(self) -> Mapping[bytes, BucketUsage]:
        """Return the usage of every tenant."""
        with self._lock, self._index.batch():
            # All of it: how much somebody else stores must not tell in when ours is swept.
            while self._sweep():
                pass
            return self._index.usage()

    def _forget(self, name: EntryName) -> None:
        self._index.remove(name)
        self._entries.pop(name, None)

    def _sweep(self) -> int:
        names = self._index.expired(self._now(), limit=_SWEPT_AT_ONCE)
        for name in names:
            self._forget(name)
        return len(names)
