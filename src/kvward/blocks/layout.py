"""How the bytes of one block are laid out, and into which parts an engine cuts them.

The engine's ranks each hold a part of a block: some heads, some layers. A block exists only when
all its parts do, and which parts there are follows from the layout alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from kvward.canonical import Field, encode
from kvward.errors import CapabilityError

_LABEL = "kvward/block-layout/v1"
_ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
    "int8": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Part:
    """One rank's piece of a block.

    Attributes:
        tensor_rank: Rank that holds these heads.
        pipeline_rank: Rank that holds these layers.
        kv_group: Group of layers that share a cache geometry; 0 in this version.
        first_layer: First layer of the range.
        num_layers: Layers in the range, at least 1.
    """

    tensor_rank: int
    pipeline_rank: int
    kv_group: int
    first_layer: int
    num_layers: int

    def to_fields(self) -> tuple[Field, ...]:
        """Return what goes into the part's name."""
        return (
            self.tensor_rank,
            self.pipeline_rank,
            self.kv_group,
            self.first_layer,
            self.num_layers,
        )


@dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """Shape, type and order of a block's bytes. Nothing has a default.

    Attributes:
        order: Meaning of the axes from slowest to fastest,
            for example "layer,plane,token,head,channel".
        dtype: Effective type of the stored values; "auto" is not a type.
        block_tokens: Tokens of a block.
        num_planes: 2 for keys and values.
        num_kv_heads: Over all tensor ranks.
        head_dim: Values of one head.
        tensor_ranks: Ranks that share the heads out; heads are repeated when there are fewer.
        layers_of_stage: Number of layers of each pipeline rank, in order.
        num_kv_groups: Groups of layers with a geometry of their own. Only 1 is understood.

    Raises:
        CapabilityError: The layout has several groups, or a type without a known width.
        ValueError: A count is below 1, or heads do not divide over the ranks.
    """

    order: str
    dtype: str
    block_tokens: int
    num_planes: int
    num_kv_heads: int
    head_dim: int
    tensor_ranks: int
    layers_of_stage: tuple[int, ...]
    num_kv_groups: int

    def __post_init__(self) -> None:
        if self.num_kv_groups != 1:
            raise CapabilityError(
                f"The model has {self.num_kv_groups} groups of KV layers; only one is understood.",
                hint="Keep this model's state in the engine: do not attach a sealed store to it.",
            )
        if self.dtype not in _ITEM_BYTES:
            raise CapabilityError(
                f"The KV type {self.dtype!r} is not one whose width is known.",
                hint=f"Name the effective type, one of: {', '.join(sorted(_ITEM_BYTES))}.",
            )
        counts = (self.block_tokens, self.num_planes, self.num_kv_heads, self.head_dim,
                  self.tensor_ranks, *self.layers_of_stage)  # fmt: skip
        if not self.layers_of_stage or min(counts) < 1:
            raise ValueError("Every count of a block layout is at least 1.")
        few, many = sorted((self.num_kv_heads, self.tensor_ranks))
        if many % few:
            raise ValueError("Heads and tensor ranks do not divide.")

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Return all parts, which together are one block, in order of stage and rank."""
        parts, first_layer = [], 0
        for stage, num_layers in enumerate(self.layers_of_stage):
            parts += [
                Part(
                    tensor_rank=rank,
                    pipeline_rank=stage,
                    kv_group=0,
                    first_layer=first_layer,
                    num_layers=num_layers,
                )
                for rank in range(self.tensor_ranks)
            ]
            first_layer += num_layers
        return tuple(parts)

    def part_bytes(self, part: Part) -> int:
        """Return the plain bytes of a part."""
        heads = max(1, self.num_kv_heads // self.tensor_ranks)
        values = part.num_layers * self.num_planes * self.block_tokens * heads * self.head_dim
        return values * _ITEM_BYTES[self.dtype]

    @cached_property
    def block_bytes(self) -> int:
        """Return the plain bytes of all parts together."""
        return sum(self.part_bytes(part) for part in self.parts)

    @cached_property
    def digest(self) -> bytes:
        """Return what names this layout in associated data, 32 bytes."""
        fields: tuple[Field, ...] = (
            self.order,
            self.dtype,
            self.block_tokens,
            self.num_planes,
            self.num_kv_heads,
            self.head_dim,
            self.tensor_ranks,
            list(self.layers_of_stage),
            self.num_kv_groups,
        )
        return hashlib.sha256(encode(_LABEL, *fields)).digest()
