"""Where a tenant's own leading messages end in the prompt, counted in the engine's tokens.

The engine itself is asked to render the leading messages, each time with another fixed text of a
user behind them. What all renderings begin with does not depend on any user's text. That the real
prompt begins so, too, the adapter sees for itself (`kvward.scope.spans`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from cachetools import TTLCache

from kvward.canonical import encode
from kvward.events import EventSink
from kvward.gateway.body import Body, read_value
from kvward.scope.spans import digest_tokens

Render = Callable[[bytes], Awaitable[bytes | None]]
"""Sends a body to the engine's /tokenize; returns its answer, None when there is none."""

TOKENIZE_PATH = "/tokenize"

# They begin with a digit, a letter, a line break and a space: whatever a template's last token
# could merge with.
_USER_TEXTS = ("0", "x", "\n\n", " ,")
_LEADING_ROLES = frozenset({"system", "developer"})
_RENDERED_FIELDS = ("model", "tools", "chat_template_kwargs", "add_special_tokens")
_RENDER_S = 2.0
_MAX_KNOWN = 256  # of each tenant
_KNOWN_S = 300.0  # a template may print the date, and an engine come back with another


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Where the leading messages end.

    Attributes:
        end_tokens: Counted from the beginning of the prompt, at least 1.
        digest: Of the token ids up to there, 32 bytes.
    """

    end_tokens: int
    digest: bytes


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class BoundaryFinder:
    """Finds boundaries, and remembers them for each tenant apart.

    Args:
        events: Takes "gateway.boundary-unknown" when the engine did not render.
        monotonic_s: Clock.
    """

    def __init__(
        self, *, events: EventSink, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._events = events
        self._clock = monotonic_s
        # SECURITY: every tenant has its own, so that the time of an answer does not tell one tenant
        # which system prompts others use, nor how many.
        self._known: dict[str, TTLCache[bytes, Boundary | None]] = {}

    async def find(self, body: Body, *, tenant: str, render: Render) -> Boundary | None:
        """Return where the leading messages of a chat end; None when none lead.

        Raises:
            UsageError: A field is not JSON.
        """
        leading = _leading_messages(body)
        if not leading:
            return None
        fields = {name: read_value(body, name) for name in _RENDERED_FIELDS if name in body}
        known = self._known.get(tenant)
        if known is None:
            known = self._known[tenant] = TTLCache(_MAX_KNOWN, _KNOWN_S, timer=self._clock)
        key = _digest(leading, fields)
        if key in known:
            return known[key]
        tokens = await find_leading_tokens(leading, fields, render)
        if tokens is None:
            self._events.emit("gateway.boundary-unknown")
            return None
        found = _describe(tokens)
        known[key] = found
        return found


async def find_leading_tokens(
    leading: Sequence[Mapping[str, Any]], fields: Mapping[str, Any], render: Render
) -> list[int] | None:
    """Return what a prompt with these leading messages begins with, whatever a user says then.

    Args:
        fields: What else decides how a chat is rendered, such as its tools.
    Returns:
        Token ids, none if they have nothing in common; None when the engine did not render.
    """
    try:
        async with asyncio.timeout(_RENDER_S):
            renderings = await asyncio.gather(
                *(_render(leading, fields, text, render) for text in _USER_TEXTS)
            )
    except TimeoutError:
        return None
    whole = [tokens for tokens in renderings if tokens is not None]
    if len(whole) < len(renderings):
        return None
    return whole[0][: _common_prefix(whole)]


def _describe(tokens: Sequence[int]) -> Boundary | None:
    try:
        return Boundary(end_tokens=len(tokens), digest=digest_tokens(tokens)) if tokens else None
    except ValueError:  # no model has such tokens
        return None


def _leading_messages(body: Body) -> list[Mapping[str, Any]]:
    messages = read_value(body, "messages")
    leading: list[Mapping[str, Any]] = []
    for message in messages if isinstance(messages, list) else []:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _LEADING_ROLES:
            break
        if not _is_text(message.get("content")):
            return []
        leading.append(message)
    return leading


def _is_text(content: Any) -> bool:
    """Tell whether a message holds nothing but text: what else it may hold is not in its tokens."""
    if isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in content
    )


async def _render(
    leading: Sequence[Mapping[str, Any]], fields: Mapping[str, Any], text: str, render: Render
) -> list[int] | None:
    messages = [*leading, {"role": "user", "content": text}]
    answer = await render(msgspec.json.encode({**fields, "messages": messages}))
    try:
        return None if answer is None else msgspec.json.decode(answer, type=_Tokenized).tokens
    except msgspec.DecodeError:
        return None


def _common_prefix(renderings: Sequence[Sequence[int]]) -> int:
    end = 0
    for column in zip(*renderings, strict=False):
        if len(set(column)) > 1:
            break
        end += 1
    return end


def _digest(leading: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> bytes:
    content = msgspec.json.encode([leading, fields], order="sorted")
    return hashlib.sha256(encode("kvward/leading-messages/v1", content)).digest()
