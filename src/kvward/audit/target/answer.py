"""An answer while it is read, and what is counted in it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvward.audit.exchange import Ending, Reply
from kvward.audit.plan import Route
from kvward.audit.target.wire import (
    MAX_POSITIONS,
    TopLogprobs,
    WireError,
    find,
    to_count,
    to_name,
)

_MAX_TEXT_CHARACTERS = 1 << 20
_MAX_IDS = 16
_DIGEST_CHARACTERS = 16
_ENVELOPES = ("message", "response")

Alternative = tuple[str, ...]
"""Paths whose counts are added up. The first must be there; others count as nothing if absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Where a server says how many tokens it counted.

    Each field lists alternatives, best first; a path is looked up in the answer's top level and
    inside the envelopes `message` and `response` of streamed events.

    Attributes:
        prompt: All tokens of the prompt, reused or not.
        completion: Generated tokens.
        cached: Tokens of the prompt that were reused.
        created: Tokens of the prompt that were written to a cache.
        matched: Tokens of the prompt that a router in front knew already.
    """

    prompt: tuple[Alternative, ...]
    completion: tuple[Alternative, ...]
    cached: tuple[Alternative, ...]
    created: tuple[Alternative, ...] = ()
    matched: tuple[Alternative, ...] = ()
    paths: frozenset[str] = field(init=False)
    roots: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        groups = (*self.prompt, *self.completion, *self.cached, *self.created, *self.matched)
        paths = frozenset(path for group in groups for path in group)
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "roots", frozenset(path.partition(".")[0] for path in paths))


class Answer:
    """What was read of one answer so far. Shapes write to it, `to_reply` closes it.

    Args:
        start_ns: When the request was sent, on the clock of `time.perf_counter_ns`.
    """

    def __init__(self, start_ns: int, counters: Counters) -> None:
        self.start_ns = start_ns
        self.status: int | None = None
        self.ttft_ns: int | None = None
        self.finished = False
        self.error: str | None = None
        self.scope_hint: str | None = None
        self.cache_hit: bool | None = None
        self.finish_reason: str | None = None
        self.model: str | None = None
        self._counters = counters
        self._counts: dict[str, int] = {}
        self._text: list[str] = []
        self._text_characters = 0
        self._top: list[TopLogprobs] = []
        self._ids: dict[str, None] = {}

    def mark_first_token(self) -> None:
        """Take the time, if this is the first token."""
        if self.ttft_ns is None:
            self.ttft_ns = time.perf_counter_ns() - self.start_ns

    def add_text(self, text: object) -> None:
        """Append text; None is none.

        Raises:
            WireError: It is no text, or has grown out of all proportion.
        """
        if text is not None and not isinstance(text, str):
            raise WireError("a part of the answer is not what the protocol says")
        if text:
            self._text_characters += len(text)
            if self._text_characters > _MAX_TEXT_CHARACTERS:
                raise WireError(f"the answer has more than {_MAX_TEXT_CHARACTERS} characters")
            self._text.append(text)

    def add_logprobs(self, positions: list[TopLogprobs]) -> None:
        """Append the alternatives of further positions, up to a bound."""
        self._top.extend(positions[: MAX_POSITIONS - len(self._top)])

    def add_id(self, value: object) -> None:
        """Note an identifier of the answer."""
        name = to_name(value)
        if name is not None and len(self._ids) < _MAX_IDS:
            self._ids[name] = None

    def add_counts(self, value: Mapping[str, Any]) -> None:
        """Note every count of an event or body; later ones replace earlier ones."""
        self._note_counts(value)
        for envelope in _ENVELOPES:
            inner = value.get(envelope)
            if isinstance(inner, dict):
                self._note_counts(inner)

    def _note_counts(self, value: Mapping[str, Any]) -> None:
        if self._counters.roots.isdisjoint(value):
            return
        for path in self._counters.paths:
            count = to_count(find(value, path))
            if count is not None:
                self._counts[path] = count

    def _count(self, alternatives: tuple[Alternative, ...]) -> int | None:
        for alternative in alternatives:
            if alternative[0] in self._counts:
                return sum(self._counts.get(path, 0) for path in alternative)
        return None

    def to_reply(self, ending: Ending, *, route: Route = Route.COMPLETIONS) -> Reply:
        """Return what was read."""
        text = "".join(self._text)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        counters = self._counters
        return Reply(
            ending=ending,
            status=self.status,
            start_ns=self.start_ns,
            ttft_ns=self.ttft_ns,
            total_ns=time.perf_counter_ns() - self.start_ns,
            text=text,
            top_logprobs=tuple(self._top),
            prompt_tokens=self._count(counters.prompt),
            completion_tokens=self._count(counters.completion),
            cached_tokens=self._count(counters.cached),
            created_tokens=self._count(counters.created),
            response_ids=tuple(self._ids),
            matched_tokens=self._count(counters.matched),
            cache_hit=self.cache_hit,
            scope_hint=self.scope_hint,
            error=self.error,
            route=route,
            model=self.model,
            finish_reason=self.finish_reason,
            output_digest=digest[:_DIGEST_CHARACTERS] if text else None,
        )
