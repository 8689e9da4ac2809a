"""A caller's body, taken apart at its top level. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from kvward.errors import UsageError

Body = dict[str, msgspec.Raw]
Opening = list[bytes] | None


def parse_body(content: bytes, *, content_type: bytes) -> Body:
    """Decode the top level of a JSON object. [untrusted]

    Values stay byte for byte as they came; of a field that comes twice the last one stays, under
    whatever escapes its name was written.

    Raises:
        UsageError: the type is not JSON in UTF-8, or the content is not an object.
    """
    media_type, *parameters = (part.strip().lower() for part in content_type.split(b";"))
    charsets = [p.partition(b"=")[2].strip(b'"') for p in parameters if p.startswith(b"charset")]
    if media_type != b"application/json" or any(c not in {b"utf-8", b"utf8"} for c in charsets):
        raise UsageError("The body must have the content type application/json, in UTF-8.")
    try:
        content.decode()  # values that are kept as they came are not decoded below
        return msgspec.json.decode(content, type=Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UsageError("The body is not a JSON object.") from exc


def read_value(body: Body, name: str) -> Any:  # whatever a caller sent
    """Decode one field; None when it is absent. [untrusted]

    Raises:
        UsageError: it cannot be decoded.
    """
    raw = body.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise UsageError(f"{name} cannot be read.") from exc


def read_text(body: Body, name: str) -> str | None:
    """Decode one field that is text or null. [untrusted]

    Raises:
        UsageError: it is something else.
    """
    value = read_value(body, name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} is not text.")
    return value


def has_value(body: Body, name: str) -> bool:
    """Return whether a field asks for something: null and false ask for nothing."""
    return name in body and bytes(body[name]).strip() not in {b"null", b"false"}
