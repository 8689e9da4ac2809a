"""Reading JSON from somebody else without leaving it two ways to be understood.

What a name stands for is decided by the first parser that reads it, so a document in which a name
occurs twice, a number is none, or a text is no UTF-8 is refused instead of being interpreted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from typing import Any, NoReturn

import msgspec

from kvward.errors import DocumentError

MAX_DOCUMENT_BYTES = 16 << 20
_MAX_DEPTH = 64


def parse_unverified_object(
    data: bytes, *, what: str, max_bytes: int = MAX_DOCUMENT_BYTES
) -> dict[str, Any]:  # Any: JSON
    """Read a JSON object in which every name occurs once.

    Args:
        data: UTF-8. [untrusted]
        what: What it should be, for the message, for example "the manifest".
    Raises:
        DocumentError: It is too large, too deep, not JSON, not an object, or not unambiguous.
    """
    if len(data) > max_bytes:
        raise DocumentError(f"{_capital(what)} has more than {max_bytes} bytes.")
    if _depth(data) > _MAX_DEPTH:
        raise DocumentError(f"{_capital(what)} is nested more than {_MAX_DEPTH} deep.")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        if b"\\u" in data:
            # An escaped half of a character is a text that nobody could write again.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:
        raise DocumentError(f"{_capital(what)} is not JSON that reads in one way: {exc}.") from exc
    if not isinstance(value, dict):
        raise DocumentError(f"{_capital(what)} is not a JSON object.")
    return value


def to_canonical_json(value: object) -> bytes:
    """Return JSON with sorted names and no white space: one value, one sequence of bytes."""
    return msgspec.json.encode(value, order="sorted")


def decode_base64(text: object, *, what: str) -> bytes:
    """Return the bytes of standard, padded base64; each sequence of bytes has one such text.

    Raises:
        DocumentError: It is not a text of that form.
    """
    if isinstance(text, str) and text.isascii():
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            data = None
        if data is not None and base64.b64encode(data).decode() == text:
            return data
    raise DocumentError(f"{_capital(what)} is not in standard base64.")


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of bytes as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name occurs twice")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _depth(data: bytes) -> int:
    """Return an upper limit of how deep brackets are nested, without parsing."""
    deepest = depth = 0
    for byte in data.translate(None, delete=_NO_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
