"""Rotary position embedding, in the convention that rotates halves."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kvward.lab.interface import FloatArray


@lru_cache(maxsize=8)
def rotary_tables(
    *, head_dim: int, theta: float, num_positions: int
) -> tuple[FloatArray, FloatArray]:
    """Return cosines and sines, (positions, head_dim / 2) each, computed in float64."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * theta**-exponents
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(
    heads: FloatArray, positions: NDArray[np.intp], tables: tuple[FloatArray, FloatArray]
) -> FloatArray:
    """Rotate (tokens, heads, head_dim) by the positions of its tokens."""
    cos, sin = tables[0][positions][:, None, :], tables[1][positions][:, None, :]
    half = heads.shape[-1] // 2
    low, high = heads[..., :half], heads[..., half:]
    rotated = np.empty_like(heads)
    rotated[..., :half] = low * cos - high * sin
    rotated[..., half:] = high * cos + low * sin
    return rotated
