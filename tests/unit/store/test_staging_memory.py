"""Memory that a caller gives to be loaded into, of every shape that bytes come in.

`load` and `open_into` take a memoryview of bytes and say nothing of its format. Two kinds work for
as long as everything opens, and fail where something does not: then the wiping raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from attacks.hostile_state.place import MemoryPlace
from attacks.hostile_state.world import LAYOUTS, Block, Group, World

from kvward.errors import OpenError
from kvward.scope import SealKey
from kvward.seal import OVERHEAD_BYTES, BlockSealer, Lifetime
from kvward.store.sealed import ScopedStore

Shape = Callable[[int], memoryview]
SHAPES = [
    pytest.param(lambda size: memoryview(bytearray(size)).cast("c"), id="characters"),
    pytest.param(lambda size: memoryview(np.zeros((size, 1), np.uint8)), id="two-dimensional"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("keyrings"))
    yield world
    world.close()


def laid(world: World, *, damaged: bool) -> tuple[ScopedStore, Group, Block]:
    place, group = MemoryPlace(), world.readers[0]
    block = group.blocks[1][0]
    data = bytes([*block.sealed[0][:-1], block.sealed[0][-1] ^ 1]) if damaged else block.sealed[0]
    place.lay([(block.names[0], data)])
    store = world.deployments["here"].store(place.backend, LAYOUTS[group.layout])
    return store.scope(group.owner), group, block


@pytest.mark.parametrize("shape", SHAPES)
def test_what_opens_is_loaded_into_any_shape(world: World, shape: Shape) -> None:
    store, group, block = laid(world, damaged=False)
    memory = shape(len(block.plain[0]))
    assert store.load([block.chain_hash], memory, parts=group.parts) == [True]
    assert memory.tobytes() == block.plain[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_does_not_open_leaves_zeros_in_any_shape(world: World, shape: Shape) -> None:
    store, group, block = laid(world, damaged=True)
    memory = shape(len(block.plain[0]))
    try:
        assert store.load([block.chain_hash], memory, parts=group.parts) == [False]
    finally:
        assert not any(memory.tobytes())


@pytest.mark.parametrize("shape", SHAPES)
def test_an_opener_leaves_zeros_in_any_shape(shape: Shape) -> None:
    sealer, plain = BlockSealer(SealKey(b"k" * 32), epoch=0), b"secret bytes" * 8
    where = {"name": b"n" * 64, "layout_digest": b"l" * 32}
    sealed = bytearray(len(plain) + OVERHEAD_BYTES)
    sealer.seal_into(plain, memoryview(sealed), created_unix_s=5, nonce=b"n" * 24, **where)
    sealed[-1] ^= 1
    memory = shape(len(plain))
    try:
        with pytest.raises(OpenError):
            sealer.open_into(
                sealed, memory, lifetime=Lifetime(oldest_unix_s=0, newest_unix_s=9), **where
            )
    finally:
        assert not any(memory.tobytes())


def test_no_parts_are_no_hit(world: World) -> None:
    store, _, block = laid(world, damaged=False)
    assert store.load([block.chain_hash, b"x" * 32], memoryview(b""), parts=()) != [True, True]
