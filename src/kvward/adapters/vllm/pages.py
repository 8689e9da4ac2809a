"""Copy blocks between the engine's pages and private memory. Nothing else touches tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kvward.blocks.layout import BlockLayout
from kvward.errors import CapabilityError


class Pages:
    """The engine's KV pages of all layers.

    Args:
        layers: For each layer in order its pages, [block, head, token, keys and values].
        layout: What a block of all layers has to look like.
    Raises:
        CapabilityError: The pages do not look like the layout.
    """

    def __init__(self, layers: Sequence[torch.Tensor], layout: BlockLayout) -> None:
        shape = (layout.num_kv_heads, layout.block_tokens, layout.num_planes * layout.head_dim)
        for pages in layers:
            if (
                tuple(pages.shape[1:]) != shape
                or str(pages.dtype).removeprefix("torch.") != layout.dtype
                or not pages[0].is_contiguous()
            ):
                raise CapabilityError(
                    f"The engine's pages are {tuple(pages.shape)} of {pages.dtype}, and a block "
                    f"should be {shape} of {layout.dtype}.",
                    hint="This engine lays out its cache in a way that was not tested.",
                )
        if len(layers) != sum(layout.layers_of_stage):
            raise CapabilityError(
                f"The engine has pages of {len(layers)} layers, and "
                f"{sum(layout.layers_of_stage)} were expected."
            )
        self._layers = tuple(layers)
        self._block_shape = (len(layers), *shape)
        self._block_bytes = layout.block_bytes

    def gather(self, block_ids: Sequence[int]) -> memoryview:
        """Return a copy of blocks, one after the other, each with its layers in order."""
        memory = torch.empty((len(block_ids), *self._block_shape), dtype=self._layers[0].dtype)
        index = torch.tensor(block_ids, dtype=torch.long, device=self._layers[0].device)
        for number, pages in enumerate(self._layers):
            memory[:, number].copy_(pages.index_select(0, index))
        return memoryview(memory.view(torch.uint8).numpy()).cast("B")

    def scatter(self, block_ids: Sequence[int], staging: memoryview) -> None:
        """Copy authenticated blocks into the engine's pages.

        Args:
            staging: As `gather` returns it, for the same number of blocks. [verified]
        """
        if len(staging) != len(block_ids) * self._block_bytes:
            raise ValueError("The staging memory does not fit the blocks.")
        memory = torch.frombuffer(staging, dtype=self._layers[0].dtype)
        memory = memory.view(len(block_ids), *self._block_shape)
        index = torch.tensor(block_ids, dtype=torch.long, device=self._layers[0].device)
        for number, pages in enumerate(self._layers):
            pages.index_copy_(0, index, memory[:, number].to(pages.device))


def order_layers(kv_caches: Mapping[str, Any], layer_names: Sequence[str]) -> list[torch.Tensor]:
    """Return the pages of the layers that are cached, in the order of their numbers.

    Raises:
        CapabilityError: A layer has no pages of its own, or they are not one tensor.
    """
    strange = [n for n in layer_names if not isinstance(kv_caches.get(n), torch.Tensor)]
    if strange:
        raise CapabilityError(f"The engine has no pages of its own for the layer {strange[0]!r}.")
    return [kv_caches[name] for name in sorted(layer_names, key=_by_number)]


def _by_number(layer_name: str) -> list[tuple[int, str]]:
    """Return a key that puts layer 10 after layer 9."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", layer_name)]
