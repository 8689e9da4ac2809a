"""Where the mutated bytes are laid: a backend of kvward's, and a hand that reaches behind it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from kvward.store.backend import Backend, Entry, EntryName, Room
from kvward.store.backends.filesystem import FilesystemBackend
from kvward.store.backends.memory import MemoryBackend

# The backend keeps serving whatever the time is.
_FOREVER = 4_000_000_000
_ROOM = Room(capacity_bytes=1 << 30, share_bytes=1 << 26)


class Place(Protocol):
    """A backend that the attacker owns."""

    backend: Backend

    def lay(self, entries: Iterable[tuple[EntryName, bytes]]) -> None:
        """Make the backend answer with these bytes."""


class MemoryPlace:
    """Implements `Place` by putting what is to be answered."""

    def __init__(self) -> None:
        self.backend: Backend = MemoryBackend(_ROOM, now_unix_s=lambda: 0.0)

    def lay(self, entries: Iterable[tuple[EntryName, bytes]]) -> None:
        """Make the backend answer with these bytes."""
        kept = self.backend.put_many(_to_entries(entries))
        assert all(kept)


class FilesystemPlace:
    """Implements `Place` by writing over the files of entries that were put.

    Args:
        folder: The store's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.backend: Backend = FilesystemBackend(folder, _ROOM, now_unix_s=lambda: 0.0)

    def lay(self, entries: Iterable[tuple[EntryName, bytes]]) -> None:
        """Make the backend answer with these bytes: each file is put, then changed on the disk."""
        entries = list(entries)
        kept = self.backend.put_many(_to_entries((name, b"put") for name, _ in entries))
        assert all(kept)
        for name, data in entries:
            path = self._path(name)
            path.write_bytes(data)
            os.utime(path, (_FOREVER, _FOREVER))

    def _path(self, name: EntryName) -> Path:
        return self._folder / "entries" / name.tenant.hex() / name.scope.hex() / name.name.hex()


def _to_entries(entries: Iterable[tuple[EntryName, bytes]]) -> Sequence[Entry]:
    return [Entry(name=name, data=data, expires_unix_s=_FOREVER) for name, data in entries]
