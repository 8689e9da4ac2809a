"""Answers in the shapes of OpenAI's two generation routes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from kvward.lab.interface import TokenEvent
from kvward.lab.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of an answer: its text and the tokens it came from."""

    text: str
    events: tuple[TokenEvent, ...]
    finish_reason: str | None


def usage(
    *, prompt_tokens: int, completion_tokens: int, last_event: TokenEvent | None
) -> dict[str, Any]:
    """Return the usage of a request.

    Args:
        last_event: None when there was none.
    """
    cached_tokens = 0 if last_event is None else last_event.cached_tokens
    values: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    if last_event is not None and last_event.replica is not None:
        values["routing"] = {
            "replica": last_event.replica,
            "matched_tokens": last_event.routed_tokens,
        }
    return values


class Shape(Protocol):
    """How one route writes its answers; `headers` go with them."""

    headers: list[tuple[bytes, bytes]]

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """Return a body or chunk around choices."""

    def choice(self, piece: Piece, *, chunk: bool) -> dict[str, Any]:
        """Return the choice for a piece of the answer."""

    def opening(self) -> dict[str, Any] | None:
        """Return the choice of a chunk that comes before the first token, if there is one."""


@dataclass(slots=True, kw_only=True)
class CompletionShape:
    """/v1/completions."""

    model: str
    tokenizer: ChatTokenizer
    id: str = field(default_factory=lambda: f"cmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    _offset: int = 0

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:  # noqa: ARG002
        """Return a body or chunk around choices; both look alike here."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def choice(self, piece: Piece, *, chunk: bool) -> dict[str, Any]:  # noqa: ARG002
        """Return the choice for a piece of the answer."""
        return {
            "index": 0,
            "text": piece.text,
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish_reason,
        }

    def opening(self) -> None:
        """Return nothing: a stream of completions begins with its first token."""
        return

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        events = [e for e in piece.events if e.token_id is not None and e.logprob is not None]
        if not events:
            return None
        texts = [self.tokenizer.token_text(e.token_id or 0) for e in events]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        tops = []
        for event in events:
            top: dict[str, float] = {}
            for token_id, logprob in event.top_logprobs or ():
                top.setdefault(self.tokenizer.token_text(token_id), logprob)
            tops.append(top)
        return {
            "tokens": texts,
            "token_logprobs": [e.logprob for e in events],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


@dataclass(slots=True, kw_only=True)
class ChatShape:
    """/v1/chat/completions."""

    model: str
    tokenizer: ChatTokenizer
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """Return a body or chunk around choices."""
        return {
            "id": self.id,
            "object": "chat.completion.chunk" if chunk else "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def choice(self, piece: Piece, *, chunk: bool) -> dict[str, Any]:
        """Return the choice for a piece of the answer."""
        content: dict[str, Any] = {"content": piece.text}
        if not chunk:
            content["role"] = "assistant"
        return {
            "index": 0,
            "delta" if chunk else "message": content,
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish_reason,
        }

    def opening(self) -> dict[str, Any]:
        """Return the choice that names the role."""
        return {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        events = [e for e in piece.events if e.token_id is not None and e.logprob is not None]
        if not events:
            return None
        content = []
        for event in events:
            entry = self._token(event.token_id or 0, event.logprob)
            entry["top_logprobs"] = [self._token(i, v) for i, v in event.top_logprobs or ()]
            content.append(entry)
        return {"content": content}

    def _token(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        text = self.tokenizer.token_text(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
