"""What a target sends, read as what it is: untrusted bytes, within bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from enum import StrEnum
from math import isfinite
from typing import Any

import msgspec

from kvward.errors import TargetError

MAX_EVENT_BYTES = 4 << 20
MAX_ANSWER_BYTES = 64 << 20
MAX_ALTERNATIVES = 64
MAX_POSITIONS = 4_096
_MAX_COUNT = 1 << 40
_MAX_NAME_CHARACTERS = 200
_DATA = b"data:"

TopLogprobs = tuple[tuple[str, float], ...]


class Framing(StrEnum):
    """How the parts of a streamed answer are told from one another."""

    EVENTS = "sse"
    LINES = "json-lines"


class WireError(TargetError):
    """An answer is not what its protocol says. Becomes a failed trial and never leaves the room."""

    code = "audit.target-wire"


def parse_unverified_object(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. [untrusted]

    Raises:
        WireError: It is no JSON, nested too deeply, or not an object.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as exc:
        raise WireError("a part of the answer is not what the protocol says") from exc
    if not isinstance(value, dict):
        raise WireError("a part of the answer is not what the protocol says")
    return value


async def iter_parts(
    chunks: AsyncIterator[bytes], framing: Framing, *, max_bytes: int = MAX_ANSWER_BYTES
) -> AsyncIterator[bytes]:
    """Yield the data of each part of a stream, as soon as it is there.

    Args:
        chunks: Pieces of the body, cut anywhere. [untrusted]
        max_bytes: Of the whole body.

    Raises:
        WireError: A part or the body is too large.
    """
    rest = b""
    total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total > max_bytes:
            raise WireError(f"the answer has more than {max_bytes} bytes")
        lines = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
        rest = lines.pop()
        if len(rest) > MAX_EVENT_BYTES:
            raise WireError(f"a part of the answer has more than {MAX_EVENT_BYTES} bytes")
        for part in _data(lines, framing):
            yield part
    for part in _data([rest], framing):
        yield part


def _data(lines: list[bytes], framing: Framing) -> Iterator[bytes]:
    for line in lines:
        if framing is Framing.LINES:
            if stripped := line.strip():
                yield stripped
        elif line.startswith(_DATA):
            yield line[len(_DATA) :].strip()


async def read_whole(chunks: AsyncIterator[bytes], *, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
    """Return a whole body.

    Raises:
        WireError: It is too large.
    """
    parts = []
    total = 0
    async for chunk in chunks:
        total += len(chunk)
        if total > max_bytes:
            raise WireError(f"the answer has more than {max_bytes} bytes")
        parts.append(chunk)
    return b"".join(parts)


def find(value: object, path: str) -> object:
    """Return what lies at a path such as "choices.0.text"; None when nothing does."""
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit():
            place = int(name)
            value = value[place] if place < len(value) else None
        else:
            return None
    return value


def to_count(value: object) -> int | None:
    """Return a number of tokens; None for whatever cannot be one."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT:
        return value
    return None


def to_name(value: object) -> str | None:
    """Return a short text without control characters; None for what is no text or empty."""
    if not isinstance(value, str) or not value:
        return None
    cut = value[: 2 * _MAX_NAME_CHARACTERS]
    return "".join(c if c.isprintable() else " " for c in cut)[:_MAX_NAME_CHARACTERS]


def to_objects(value: object) -> list[dict[str, Any]]:
    """Return a list of objects.

    Raises:
        WireError: It is no list, or holds something else.
    """
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise WireError("a part of the answer is not what the protocol says")
    return value


def read_top_logprobs(value: object) -> list[TopLogprobs]:
    """Read logprobs in any shape that a server is known to use; nothing for anything else.

    Known are, for each position of the answer: an object of texts and values (`top_logprobs` of
    completions); a token with a list of alternatives (`content` of chat, or the bare list of
    Responses and Ollama).

    Returns:
        For each position (text, natural log), most likely first.
    """
    if isinstance(value, dict):
        value = value.get("content") or value.get("top_logprobs")
    if not isinstance(value, list):
        return []
    return [_position(entry) for entry in value[:MAX_POSITIONS]]


def _position(entry: object) -> TopLogprobs:
    if not isinstance(entry, dict):
        return ()
    listed = entry.get("top_logprobs")
    if isinstance(listed, list):
        pairs = [
            (alternative.get("token"), alternative.get("logprob"))
            for alternative in listed[:MAX_ALTERNATIVES]
            if isinstance(alternative, dict)
        ]
    else:
        pairs = list(entry.items())[:MAX_ALTERNATIVES]
    read = [
        (token[:_MAX_NAME_CHARACTERS], float(value))
        for token, value in pairs
        if isinstance(token, str)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and isfinite(value)
    ]
    return tuple(sorted(read, key=lambda pair: -pair[1]))


_CACHE_HEADERS = (
    "x-cache",
    "x-cache-status",
    "x-cache-hit",
    "x-proxy-cache",
    "x-semantic-cache",
    "x-litellm-cache-hit",
    "cf-cache-status",
)
_HIT, _MISS = ("hit", "true"), ("miss", "false", "bypass", "dynamic", "expired", "none")


def read_cache_headers(headers: Mapping[str, str]) -> bool | None:
    """Return whether a header says that the answer came from a cache. [untrusted]

    Returns:
        None where no known header says it, in words that are known.
    """
    said = [headers.get(name, "").strip().lower() for name in _CACHE_HEADERS]
    if any(value.startswith(_HIT) for value in said):
        return True
    return False if any(value.startswith(_MISS) for value in said) else None


def read_error(value: dict[str, Any]) -> str | None:
    """Return what an error inside an answer says; None when there is none.

    Known are OpenAI's and Anthropic's object, the bare text of Ollama and TGI, and SGLang's flat
    object.
    """
    error = value.get("error")
    if error is None and value.get("object") == "error":
        error = value
    if error is None:
        return None
    if isinstance(error, dict):
        return to_name(error.get("message")) or to_name(error.get("type")) or "error"
    return to_name(error) or "error"
