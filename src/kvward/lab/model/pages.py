"""The engine's memory: pages of keys and values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvward.lab.interface import FloatArray, LlamaConfig


def new_pages(config: LlamaConfig, *, num_blocks: int, block_tokens: int) -> FloatArray:
    """Return zeroed memory of shape (layers, 2, blocks, block_tokens, kv_heads, head_dim)."""
    return np.zeros(
        (config.num_layers, 2, num_blocks, block_tokens, config.num_kv_heads, config.head_dim),
        np.float32,
    )


def write_tokens(
    layer_pages: FloatArray, slots: NDArray[np.intp], keys: FloatArray, values: FloatArray
) -> None:
    """Write keys and values of tokens to their slots in one layer.

    Args:
        layer_pages: (2, blocks, block_tokens, kv_heads, head_dim), changed in place.
        slots: (tokens,), block id times block_tokens plus offset.
        keys, values: (tokens, kv_heads, head_dim).
    """
    flat = layer_pages.reshape(2, -1, *layer_pages.shape[3:])
    flat[0, slots] = keys
    flat[1, slots] = values


def read_tokens(
    layer_pages: FloatArray, block_table: NDArray[np.intp], num_tokens: int
) -> tuple[FloatArray, FloatArray]:
    """Return keys and values of the first tokens of a block table, (tokens, kv_heads, head_dim)."""
    block_tokens = layer_pages.shape[2]
    used = block_table[: -(-num_tokens // block_tokens)]
    shape = (-1, *layer_pages.shape[3:])
    keys = layer_pages[0, used].reshape(shape)[:num_tokens]
    values = layer_pages[1, used].reshape(shape)[:num_tokens]
    return keys, values
