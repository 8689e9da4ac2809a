"""Processes that open one new store or keyring at the same moment all get in."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from keyrings import Clock, open_keyring
from kvward.store import Room
from kvward.store.backends.filesystem import FilesystemBackend


@pytest.mark.parametrize("kind", ["store", "keyring"])
def test_opening_waits_for_another_process_that_is_just_making_the_file(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "store").mkdir()
    path = tmp_path / "store" / "index.db" if kind == "store" else tmp_path / "keyring.db"
    # What another process holds for a moment between making the file and its first commit.
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    ending = threading.Timer(0.3, other.close)
    ending.start()
    try:
        if kind == "store":
            room = Room(capacity_bytes=1000, share_bytes=100)
            FilesystemBackend(tmp_path / "store", room).close()
        else:
            open_keyring(("sqlite", str(path)), Clock()).database.close()
    finally:
        ending.join()
