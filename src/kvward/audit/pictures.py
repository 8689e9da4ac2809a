"""Pictures drawn by chance, a few pixels each, for prompts that begin with one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvward.audit.exchange import Image

WIDTH, HEIGHT = 4, 3
"""Fewer pixels than a block has tokens, so that a block always holds some of the text too."""


def draw_image(random: np.random.Generator) -> Image:
    """Return a picture that nobody has sent before."""
    return Image(pixels=random.bytes(2 * WIDTH * HEIGHT), width=WIDTH, height=HEIGHT)


def vary_image(image: Image, random: np.random.Generator, *, same_pixels: bool) -> Image:
    """Return another picture of as many pixels.

    Args:
        same_pixels: The same bytes with width and height exchanged; else other bytes.
    """
    if same_pixels:
        return replace(image, width=image.height, height=image.width)
    return replace(image, pixels=random.bytes(len(image.pixels)))
