"""Digests of what describes a model: its configuration, tokenizer and chat template.

Everything is taken as the engine uses it, after defaults were filled in and options applied. A
value that is not understood is refused: a digest that leaves something out would let state of one
model pass for another's (INCIDENTS class K-STALE).

Source: docs/spec/block-identity-v1.md, section 3.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping

from kvward.canonical import Field, encode
from kvward.errors import UsageError

_CONFIG = "kvward/model-config/v1"
_TOKENIZER = "kvward/tokenizer/v1"
_TEMPLATE = "kvward/chat-template/v1"
_MAX_DEPTH = 32
_DOUBLE = struct.Struct(">d")


def digest_config(config: Mapping[str, object]) -> bytes:
    """Return the digest of an effective configuration, 32 bytes.

    Two configurations have one digest only if they are equal in value and in type: 1, 1.0, True
    and "1" all differ, as do 0.0 and -0.0, a missing key and one that is None. The order of keys
    does not count.

    Args:
        config: As JSON has it: None, booleans, integers, floats, text, lists and mappings with
            text for keys. Infinities are understood.
    Raises:
        UsageError: It holds NaN, another type, or is nested deeper than 32.
    """
    try:
        encoded = encode(_CONFIG, _field(config, depth=0))
    except ValueError as exc:
        raise UsageError(f"The configuration holds a value that has no encoding: {exc}.") from exc
    return hashlib.sha256(encoded).digest()


def digest_tokenizer(parts: Mapping[str, bytes]) -> bytes:
    """Return the digest of a tokenizer, 32 bytes.

    Args:
        parts: Everything it is made of, by name: the content of its files, its special tokens.
    Raises:
        UsageError: There are no parts.
    """
    if not parts:
        raise UsageError("A tokenizer is made of at least one part.")
    fields: list[Field] = [[n, hashlib.sha256(parts[n]).digest()] for n in sorted(parts)]
    return hashlib.sha256(encode(_TOKENIZER, *fields)).digest()


def digest_template(template: str | None) -> bytes | None:
    """Return the digest of a chat template, 32 bytes; None, which is not "", when there is none."""
    return None if template is None else hashlib.sha256(encode(_TEMPLATE, template)).digest()


def to_float_field(value: float) -> bytes:
    """Return a number as the 8 bytes of IEEE 754 binary64, big-endian.

    Raises:
        UsageError: It is NaN, which has many spellings and equals nothing.
    """
    if math.isnan(value):
        raise UsageError("NaN cannot be part of an identity: it does not even equal itself.")
    return _DOUBLE.pack(value)


def _field(value: object, *, depth: int) -> Field:
    if depth > _MAX_DEPTH:
        raise UsageError(f"The configuration is nested deeper than {_MAX_DEPTH}.")
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return to_float_field(value)  # as bytes, which no configuration holds
        case list() | tuple():
            return ["list", *(_field(item, depth=depth + 1) for item in value)]
        case Mapping():
            strange = [key for key in value if not isinstance(key, str)]
            if strange:
                raise UsageError(
                    f"The configuration has the key {strange[0]!r}, which is not text."
                )
            return [
                "mapping",
                *([key, _field(value[key], depth=depth + 1)] for key in sorted(value)),
            ]
        case _:
            raise UsageError(
                f"The configuration holds a {type(value).__name__}, which is not understood.",
                hint="Give the effective configuration as JSON would have it.",
            )
