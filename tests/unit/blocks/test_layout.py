"""Layouts: which parts there are, how many bytes, and that every field counts."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kvward.blocks.layout import BlockLayout
from kvward.errors import CapabilityError

LAYOUT = BlockLayout(
    order="layer,plane,token,head,channel",
    dtype="float16",
    block_tokens=16,
    num_planes=2,
    num_kv_heads=4,
    head_dim=64,
    tensor_ranks=2,
    layers_of_stage=(3, 5),
    num_kv_groups=1,
)
CHANGED = {
    "order": "plane,layer,token,head,channel",
    "dtype": "bfloat16",
    "block_tokens": 32,
    "num_planes": 1,
    "num_kv_heads": 8,
    "head_dim": 128,
    "tensor_ranks": 4,
    "layers_of_stage": (5, 3),
    "num_kv_groups": 2,
}


@pytest.mark.parametrize("name", [field.name for field in fields(BlockLayout)])
def test_every_field_changes_the_digest(name: str) -> None:
    if name == "num_kv_groups":
        with pytest.raises(CapabilityError, match="2 groups"):
            replace(LAYOUT, num_kv_groups=2)
        return
    assert replace(LAYOUT, **{name: CHANGED[name]}).digest != LAYOUT.digest


def test_parts_cover_every_layer_of_every_rank_once() -> None:
    covered = sorted(
        (part.tensor_rank, layer)
        for part in LAYOUT.parts
        for layer in range(part.first_layer, part.first_layer + part.num_layers)
    )
    assert covered == [(rank, layer) for rank in range(2) for layer in range(8)]
    assert LAYOUT.block_bytes == 8 * 2 * 16 * 4 * 64 * 2
    assert len({part.to_fields() for part in LAYOUT.parts}) == 4


def test_heads_are_repeated_when_ranks_outnumber_them() -> None:
    wide = replace(LAYOUT, tensor_ranks=8)
    assert wide.part_bytes(wide.parts[0]) == 3 * 2 * 16 * 1 * 64 * 2


@pytest.mark.parametrize("dtype", ["auto", "", "float8"])
def test_a_type_of_unknown_width_is_refused(dtype: str) -> None:
    with pytest.raises(CapabilityError, match="whose width"):
        replace(LAYOUT, dtype=dtype)


def test_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        replace(LAYOUT, layers_of_stage=(3, 0))
    with pytest.raises(ValueError, match="do not divide"):
        replace(LAYOUT, tensor_ranks=3)
