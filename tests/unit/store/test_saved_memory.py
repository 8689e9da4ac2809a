"""Blocks that a caller gives to be saved: as many bytes as the layout says, whatever their items.

An array of wider items, or of more dimensions, has fewer items than bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from attacks.hostile_state.place import MemoryPlace
from attacks.hostile_state.world import LAYOUTS, World

LAYOUT = LAYOUTS["half"]
SIZE = LAYOUT.block_bytes


@pytest.mark.parametrize(
    ("block", "fits"),
    [
        (np.zeros(SIZE, np.float32), False),
        (np.zeros((SIZE, 2), np.uint8), False),
        (np.zeros(SIZE // 4, np.float32), True),
        (np.zeros((SIZE // 16, 16), np.uint8), True),
    ],
    ids=["items too long", "rows too long", "items that fit", "rows that fit"],
)
def test_the_bytes_of_a_block_are_counted_and_not_its_items(
    tmp_path: Path, block: np.ndarray, *, fits: bool
) -> None:
    world = World(tmp_path)
    store = world.deployments["here"].store(MemoryPlace().backend, LAYOUT)
    scope = store.scope(world.owners["here", "anna", 0, 1])
    try:
        if fits:
            assert scope.save([b"h" * 32], [memoryview(block)], parts=LAYOUT.parts) == [True]
        else:
            with pytest.raises(ValueError, match="bytes"):
                scope.save([b"h" * 32], [memoryview(block)], parts=LAYOUT.parts)
    finally:
        world.close()
