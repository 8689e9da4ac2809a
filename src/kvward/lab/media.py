"""Pictures in a prompt, for a model that has words only: each pixel is seen as a word.

A picture stands in the prompt as placeholders, the same ones for every picture. What the model
takes in at their places follows from the pixels alone, column by column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from kvward.blocks.inputs import InputKind, PromptInput, digest_image
from kvward.errors import UsageError
from kvward.lab.behaviour import Behaviour, Slip

PLACEHOLDER = 0
_PIXEL_BYTES = 2
_MODE = "I;16B"
_PROCESSOR = hashlib.sha256(b"kvward/lab/pixels as words, column by column/v1").digest()
_SHORT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture and its place in the prompt.

    Attributes:
        pixels: Row by row, 2 bytes each, big-endian. [untrusted]
        first_token: Of its placeholders, one for each pixel.
    """

    pixels: bytes
    width: int
    height: int
    first_token: int = 0

    def __post_init__(self) -> None:
        if min(self.width, self.height) < 1:
            raise UsageError("A picture has at least one pixel.")
        if len(self.pixels) != self.num_tokens * _PIXEL_BYTES:
            raise UsageError("A picture has 2 bytes for each pixel.")

    @property
    def num_tokens(self) -> int:
        """Return how many places it takes in the prompt."""
        return self.width * self.height

    def words(self, *, vocab: int) -> list[int]:
        """Return the tokens whose embeddings the model takes in, one for each place."""
        at = ((y * self.width + x) * 2 for x in range(self.width) for y in range(self.height))
        return [int.from_bytes(self.pixels[i : i + 2], "big") % vocab for i in at]


def as_seen(tokens: list[int], pictures: Sequence[Picture], *, vocab: int) -> list[int]:
    """Return a prompt as the model takes it in."""
    seen = tokens.copy()
    for picture in pictures:
        words = picture.words(vocab=vocab)
        seen[picture.first_token : picture.first_token + len(words)] = words
    return seen


def name_inputs(pictures: Sequence[Picture], behaviour: Behaviour) -> tuple[PromptInput, ...]:
    """Return what pictures add to the names of the blocks they are in."""
    if not pictures or behaviour.slips(Slip.MEDIA_MISSING):
        return ()
    return tuple(
        PromptInput(
            kind=InputKind.IMAGE,
            digest=_digest(picture, behaviour),
            first_token=picture.first_token,
            num_tokens=picture.num_tokens,
        )
        for picture in pictures
    )


def _digest(picture: Picture, behaviour: Behaviour) -> bytes:
    if behaviour.slips(Slip.MEDIA_SHAPE_MISSING):
        return hashlib.sha256(picture.pixels).digest()
    digest = digest_image(
        picture.pixels,
        width=picture.width,
        height=picture.height,
        mode=_MODE,
        processor=_PROCESSOR,
    )
    return digest[:_SHORT_BYTES] if behaviour.slips(Slip.SHORT_MEDIA_DIGEST) else digest
