"""Exactly which model, in which engine, state was made by. Whatever changes state is in here.

The manifest has no rank in it: it holds the parallel *shape*, and so is the same on every rank.

Source: docs/spec/block-identity-v1.md, section 2.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum

from kvward.canonical import Field, encode
from kvward.errors import UsageError

_LABEL = "kvward/model-manifest/v1"
_DIGEST_BYTES = 32
# Settings that stand for whatever an engine chooses: two engines may choose differently.
_NOT_EFFECTIVE = frozenset({"auto", "default", "none", ""})


class WeightsKind(StrEnum):
    """How weights are known. Only the first has seen every byte."""

    FULL_HASH = "full-hash"
    INDEX = "index"
    REVISION = "revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsIdentity:
    """Which weights.

    Attributes:
        kind: How they are known; an operator who names a revision vouches for it.
        digest: 32 bytes: over all files, over the index of digests, or over the revision's name.
    """

    kind: WeightsKind
    digest: bytes

    def __post_init__(self) -> None:
        _check_digest(self.digest, "weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterIdentity:
    """Which adapter, by content: a name or a path may hold other bytes tomorrow.

    Attributes:
        digest: Over its weights and configuration files, 32 bytes.
        scaling: As text, where the engine applies one that is not in the files.
    """

    digest: bytes
    scaling: str

    def __post_init__(self) -> None:
        _check_digest(self.digest, "adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelShape:
    """Into how many ranks the model is cut, each at least 1."""

    tensor: int
    pipeline: int
    context: int
    expert: int

    def __post_init__(self) -> None:
        if min(self.tensor, self.pipeline, self.context, self.expert) < 1:
            raise ValueError("Every parallel size is at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelManifest:
    """Everything that state depends on besides the prompt. Nothing has a default.

    Attributes:
        weights: Which weights.
        configuration: `digest_config` of the effective model configuration: rotary scaling,
            attention windows and caps, number of layers.
        tokenizer: Digest over the tokenizer's files, 32 bytes.
        chat_template: Digest over the template's text, 32 bytes; None where there is none.
        dtype: Effective type of the computation, such as "bfloat16"; never "auto".
        kv_dtype: Effective type of stored keys and values; never "auto".
        kv_scales: Digest over the scales of a quantised cache, 32 bytes; None where it has none.
        quantisation: Method and its parameters as text; None where weights are not quantised.
        attention: Kernel and codec by which keys and values are written, as text.
        block_tokens: Tokens of a block.
        parallel: Parallel shape.
        engine: Name of the engine.
        engine_version: Its exact version. An upgrade is another manifest; see `equivalence`.
        adapter: Which adapter; None for the base model.
    Raises:
        UsageError: A type is "auto" or the like.
        ValueError: A digest does not have 32 bytes, or a size is below 1.
    """

    weights: WeightsIdentity
    configuration: bytes
    tokenizer: bytes
    chat_template: bytes | None
    dtype: str
    kv_dtype: str
    kv_scales: bytes | None
    quantisation: str | None
    attention: str
    block_tokens: int
    parallel: ParallelShape
    engine: str
    engine_version: str
    adapter: AdapterIdentity | None

    def __post_init__(self) -> None:
        for name in ("dtype", "kv_dtype", "attention", "engine", "engine_version"):
            value = getattr(self, name)
            if value.lower() in _NOT_EFFECTIVE:
                raise UsageError(
                    f"The manifest's {name} is {value!r}, which says nothing about state.",
                    hint="State what the engine really uses, as it logs it at its start.",
                )
        for name in ("configuration", "tokenizer", "chat_template", "kv_scales"):
            digest = getattr(self, name)
            if digest is not None:
                _check_digest(digest, name)
        if self.block_tokens < 1:
            raise ValueError("A block has at least one token.")

    def digest(self) -> bytes:
        """Return the 32 bytes that stand for the model in every block's identity."""
        return hashlib.sha256(encode(_LABEL, *_named_fields(self))).digest()


def _named_fields(value: object) -> list[Field]:
    """Return every attribute with its name, so that a new one changes the digest."""
    assert is_dataclass(value)  # noqa: S101 - our own types
    return [[field.name, _field(getattr(value, field.name))] for field in fields(value)]


def _field(value: object) -> Field:
    if is_dataclass(value):
        return _named_fields(value)
    assert value is None or isinstance(value, (str, bytes, int))  # noqa: S101 - our own types
    return str(value) if isinstance(value, StrEnum) else value


def _check_digest(digest: bytes, name: str) -> None:
    if len(digest) != _DIGEST_BYTES:
        raise ValueError(f"The digest of the {name} has {_DIGEST_BYTES} bytes.")
