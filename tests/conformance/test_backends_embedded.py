"""The conformance suite on what runs inside the process: memory and files."""

from pathlib import Path

import pytest

from kvward.store.backend import Backend, Room
from kvward.store.backends.filesystem import Durability, FilesystemBackend
from kvward.store.backends.memory import MemoryBackend
from kvward.testing.backends import BackendConformance
from kvward.testing.clocks import Clock


class TestMemory(BackendConformance):
    def open_backend(self, room: Room, clock: Clock) -> Backend:
        return MemoryBackend(room, now_unix_s=clock)


class TestFilesystem(BackendConformance):
    durability = Durability.NONE

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.place = tmp_path / "store"

    def open_backend(self, room: Room, clock: Clock) -> Backend:
        return FilesystemBackend(self.place, room, durability=self.durability, now_unix_s=clock)


class TestFilesystemFlushed(TestFilesystem):
    durability = Durability.FULL
