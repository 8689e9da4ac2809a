"""One object in a bucket that is not what was put there: one miss, dropped like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.hostile_state.deployment import SEALED_UNIX_S
from attacks.hostile_state.world import LAYOUTS, World
from obstore.store import MemoryStore

from kvward.events import EventCounter
from kvward.store.backend import Entry, Room
from kvward.store.backends.s3 import S3Backend

ROOM = Room(capacity_bytes=1 << 20, share_bytes=1 << 19)
FRAME_BYTES = 24


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@pytest.mark.parametrize("place", [0, FRAME_BYTES], ids=["in its frame", "behind it"])
def test_a_damaged_object_costs_no_block_but_its_own(world: World, place: int) -> None:
    bucket, events = MemoryStore(), EventCounter()
    backend = S3Backend(bucket, ROOM, prefix="p", now_unix_s=world.clock)
    group = world.readers[0]
    damaged, whole = group.blocks[1][:2]
    expires = SEALED_UNIX_S + 1000
    backend.put_many(
        [
            Entry(name=block.names[0], data=block.sealed[0], expires_unix_s=expires)
            for block in (damaged, whole)
        ]
    )
    (path,) = [
        meta["path"]
        for meta in bucket.list().collect()
        if damaged.names[0].name.hex() in meta["path"]
    ]
    data = bytearray(bucket.get(path).bytes())
    data[place] ^= 1
    bucket.put(path, bytes(data))
    layout = LAYOUTS[group.layout]
    store = world.deployments["here"].store(backend, layout, events).scope(group.owner)
    staging = memoryview(bytearray(2 * layout.block_bytes))
    hashes = [damaged.chain_hash, whole.chain_hash]
    try:
        assert store.load(hashes, staging, parts=group.parts) == [False, True]
        assert store.contains(hashes) == [False, True]
        assert "store.unavailable" not in events.counts()
    finally:
        backend.close()
