"""What a prompt holds besides tokens, and what of it enters the identity of which block.

The placeholder tokens of every image are the same, and so are the zeros in place of embeddings. So
whatever an engine feeds into the model besides token ids has a digest here, or the prompt is not
cached from there on.

Source: docs/spec/block-identity-v1.md, section 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvward.canonical import Field, encode
from kvward.errors import UsageError

DIGEST_BYTES = 32


class InputKind(StrEnum):
    """Kinds of input that are understood. Anything else is uncacheable."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """Something that stands in a prompt in place of tokens, or beside them.

    Attributes:
        kind: As the engine calls it; see `InputKind`.
        digest: Over everything of it that reaches the model, 32 bytes; None where nobody knows.
        first_token: Where its place in the prompt begins.
        num_tokens: How many tokens it takes there, at least 1.
    """

    kind: str
    digest: bytes | None
    first_token: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheableInputs:
    """Inputs that are all understood.

    Attributes:
        inputs: In the order of their places.
        cacheable_tokens: How many leading tokens of the prompt may be cached.
        reason: Why not all of them; None when they may.
    """

    inputs: tuple[PromptInput, ...]
    cacheable_tokens: int
    reason: str | None


def digest_image(pixels: bytes, *, width: int, height: int, mode: str, processor: bytes) -> bytes:
    """Return the digest of an image as the model sees it.

    Args:
        pixels: Raw, in the order of `mode`; equal bytes of another shape are another image.
        mode: Such as "RGB", "RGBA", "L", "P"; a palette belongs to the pixels.
        processor: Digest of the processor's configuration (size, crop, normalisation), 32 bytes.
    Raises:
        UsageError: The processor's digest does not have 32 bytes.
    """
    _check_digests([processor], "processor")
    return hashlib.sha256(
        encode("kvward/input/image/v1", width, height, mode, processor, pixels)
    ).digest()


def digest_audio(
    samples: bytes, *, rate_hz: int, channels: int, dtype: str, processor: bytes
) -> bytes:
    """Return the digest of a sound as the model hears it; arguments as for an image."""
    _check_digests([processor], "processor")
    return hashlib.sha256(
        encode("kvward/input/audio/v1", rate_hz, channels, dtype, processor, samples)
    ).digest()


def digest_video(frames: Sequence[bytes], *, times_ms: Sequence[int]) -> bytes:
    """Return the digest of a video.

    Args:
        frames: Digests of its frames, as `digest_image` returns them.
        times_ms: When each is shown.
    Raises:
        UsageError: Not every frame has a digest of 32 bytes and a time.
    """
    _check_digests(frames, "frame")
    if len(frames) != len(times_ms) or not frames:
        raise UsageError("A video has at least one frame, and a time for each.")
    return hashlib.sha256(encode("kvward/input/video/v1", list(frames), list(times_ms))).digest()


def digest_embeddings(
    content: bytes, *, shape: Sequence[int], dtype: str, mask: bytes | None
) -> bytes:
    """Return the digest of embeddings given in place of tokens.

    Args:
        content: Raw bytes in the order of `shape`.
        mask: Which positions they replace, raw bytes; None where there is no mask.
    """
    return hashlib.sha256(
        encode("kvward/input/embeddings/v1", list(shape), dtype, mask, content)
    ).digest()


def check_inputs(inputs: Sequence[PromptInput], *, num_tokens: int) -> CacheableInputs:
    """Tell how much of a prompt may be cached. Fails closed.

    Up to the first input that is not understood everything may; from its place on nothing may.
    Places that overlap, or lie outside the prompt, make all of it uncacheable: then it is not known
    what stands where.

    Args:
        inputs: Of the whole prompt, in any order. [untrusted]
        num_tokens: Of the prompt, placeholders included.
    """
    ordered = sorted(inputs, key=lambda i: i.first_token)
    end = 0
    for given in ordered:
        if given.num_tokens < 1 or given.first_token < end:
            return CacheableInputs(inputs=(), cacheable_tokens=0, reason="places overlap")
        end = given.first_token + given.num_tokens
    if end > num_tokens:
        return CacheableInputs(inputs=(), cacheable_tokens=0, reason="a place is outside")
    kinds = frozenset(InputKind)
    for number, given in enumerate(ordered):
        reason = None
        if given.kind not in kinds:
            reason = "an input of an unknown kind"
        elif not _is_digest(given.digest):
            reason = "an input without a full digest"
        if reason is not None:
            return CacheableInputs(
                inputs=tuple(ordered[:number]), cacheable_tokens=given.first_token, reason=reason
            )
    return CacheableInputs(inputs=tuple(ordered), cacheable_tokens=num_tokens, reason=None)


def extras_of_block(
    inputs: Sequence[PromptInput], *, first_token: int, block_tokens: int
) -> tuple[Field, ...]:
    """Return what a block holds besides its tokens, for the block's hash.

    Args:
        inputs: From `check_inputs`.
        first_token: Of the block.
    Returns:
        For each input that reaches into the block: kind, digest, where in the block it begins,
        which of its own tokens that is, how many of them lie in the block, and how many it has in
        all: a model that attends in both directions inside an image sees those that follow.
    """
    extras: list[Field] = []
    for given in inputs:
        begin = max(given.first_token, first_token)
        end = min(given.first_token + given.num_tokens, first_token + block_tokens)
        if begin < end:
            extras.append(
                [
                    given.kind,
                    given.digest,
                    begin - first_token,
                    begin - given.first_token,
                    end - begin,
                    given.num_tokens,
                ]
            )
    return tuple(extras)


def _is_digest(digest: object) -> bool:
    return isinstance(digest, bytes) and len(digest) == DIGEST_BYTES


def _check_digests(digests: Sequence[bytes], of_what: str) -> None:
    if not all(_is_digest(digest) for digest in digests):
        raise UsageError(f"The digest of the {of_what} has {DIGEST_BYTES} bytes.")
