"""Exactly which model, in which engine, state was made by. Whatever changes state is in here.

The manifest has no rank in it: it holds the parallel *shape*, and so is the same on every rank.

Source: docs/spec/block-identity-v1.md, section 2.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Self

from kvward.canonical import Field, encode
from kvward.errors import UsageError

_LABEL = "kvward/model-manifest/v1"
_DIGEST_BYTES = 32
# Settings that stand for whatever an engine chooses: two engines may choose differently.
_NOT_EFFECTIVE = frozenset({"auto", "default", "none", ""})
_UNSCALED = frozenset({"float32", "float16", "bfloat16"})
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REVISION = "kvward/weights-revision/v1"


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

    @classmethod
    def from_revision(cls, commit: str) -> Self:
        """Return the identity of weights that an operator vouches for by their commit.

        Args:
            commit: In full, 40 or 64 hexadecimal digits.
        Raises:
            UsageError: It is not. A branch or a tag names other weights tomorrow.
        """
        if not _COMMIT.fullmatch(commit):
            raise UsageError(
                f"The revision {commit!r} is not a commit in full.",
                hint="Name the commit, 40 or 64 hexadecimal digits, or hash the weights.",
            )
        digest = hashlib.sha256(encode(_REVISION, commit)).digest()
        return cls(kind=WeightsKind.REVISION, digest=digest)


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
        for field in fields(self):
            _check_count(getattr(self, field.name), f"{field.name} ranks")


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
        kv_scales: Digest over the scales of a quantised cache, 32 bytes, even if all are 1; None
            for float32, float16 and bfloat16, which have none.
        quantisation: Method and its parameters as text; None where weights are not quantised.
        attention: Kernel and codec by which keys and values are written, as text.
        block_tokens: Tokens of a block.
        parallel: Parallel shape.
        engine: Name of the engine.
        engine_version: Its exact version. An upgrade is another manifest; see `equivalence`.
        adapter: Which adapter; None for the base model.
    Raises:
        UsageError: A type is "auto" or the like, or a quantised cache has no scales.
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
        for name in (
            "dtype", "kv_dtype", "quantisation", "attention", "engine", "engine_version",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None and name == "quantisation":
                continue
            if value.strip().lower() in _NOT_EFFECTIVE:
                raise UsageError(
                    f"The manifest's {name} is {value!r}, which says nothing about state.",
                    hint="State what the engine really uses, as it logs it at its start.",
                )
        for name in ("configuration", "tokenizer", "chat_template", "kv_scales"):
            digest = getattr(self, name)
            if digest is not None:
                _check_digest(digest, name)
        if (self.kv_dtype in _UNSCALED) is not (self.kv_scales is None):
            raise UsageError(
                f"The KV type {self.kv_dtype!r} and the digest of its scales do not fit together.",
                hint="A quantised cache is read back with scales: give the digest of those in "
                f"force. {', '.join(sorted(_UNSCALED))} have none.",
            )
        _check_count(self.block_tokens, "tokens of a block")

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


def _check_digest(digest: object, name: str) -> None:
    if not isinstance(digest, bytes) or len(digest) != _DIGEST_BYTES:
        raise ValueError(f"The digest of the {name} has {_DIGEST_BYTES} bytes.")


def _check_count(count: object, name: str) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"The number of {name} is an integer of at least 1.")
