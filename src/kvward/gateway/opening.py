"""What a conversation opens with, in canonical bytes: turn n + 1 opens as turn n did. Pure.

Two requests of a tenant with equal openings are one conversation, if nobody names another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvward.canonical import encode
from kvward.gateway.body import Body, Opening, read_value

_MARKER = "cache_control"


def no_opening(body: Body) -> Opening:  # noqa: ARG001 - one of several with this signature
    """Return None: nothing anchors a conversation."""
    return None


def chat_opening(body: Body) -> Opening:
    """Return the messages up to and including the first of the user.

    None when there are no messages or none of the user: then nothing anchors a conversation.
    """
    # Everything else that leads the prompt belongs to the opening as well.
    leading = [bytes(body[f]) if f in body else None for f in ("model", "tools")]
    rarer = [[f, bytes(body[f])] for f in ("documents", "chat_template") if f in body]
    first = encode("kvward/opening/v1", leading, *([rarer] if rarer else []))
    return _until_user(first, read_value(body, "messages"))


def messages_opening(body: Body) -> Opening:
    """Return system prompt, tools and the messages up to and including the first of the user.

    Clients move their cache markers from turn to turn, and write text as text or as a list with
    one block as they need one for the marker: both mean the same.
    """
    leading = [_canonical(_plain(read_value(body, f))) for f in ("model", "tools", "system")]
    messages = read_value(body, "messages")
    return _until_user(
        encode("kvward/opening/messages/v1", leading), _plain(messages), text_type="text"
    )


def responses_opening(body: Body) -> Opening:
    """Return instructions, tools and the input up to and including the user's first item."""
    leading = [_canonical(read_value(body, f)) for f in ("model", "tools", "instructions")]
    given = read_value(body, "input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    elif isinstance(given, list):
        given = [_without_type(item) for item in given]
    return _until_user(
        encode("kvward/opening/responses/v1", leading), given, text_type="input_text"
    )


def _until_user(leading: bytes, messages: Any, *, text_type: str | None = None) -> Opening:
    if not isinstance(messages, list):
        return None
    opening = [leading]
    for message in messages:
        if not isinstance(message, Mapping):
            return None
        same = message if text_type is None else _with_plain_text(message, text_type)
        opening.append(_canonical(_plain(same)))
        if message.get("role") == "user":
            return opening
    return None


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _plain(value: Any) -> Any:
    """Return a value without cache markers, which say nothing to the model."""
    # The depth is bounded by the decoder's.
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if name != _MARKER}
    return value


def _with_plain_text(message: Mapping[str, Any], text_type: str) -> Mapping[str, Any]:
    match message.get("content"):
        case [{"type": kind, "text": str(text), **rest}] if kind == text_type and not (
            set(rest) - {_MARKER}
        ):
            return {**message, "content": text}
    return message


def _without_type(item: Any) -> Any:
    if isinstance(item, Mapping) and item.get("type") == "message":
        return {name: value for name, value in item.items() if name != "type"}
    return item
