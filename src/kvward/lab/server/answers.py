"""Whole answers kept for the same request again: by everything that decides the answer."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator

import msgspec

from kvward.canonical import Field, encode
from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.interface import FinishReason, GenerationRequest, TokenEvent

_TAIL_TOKENS = 8
_WHOLE = frozenset({FinishReason.STOP, FinishReason.LENGTH})


class AnswerCache:
    """Answers that would come out the same again: greedy ones, and samples with a seed.

    Args:
        num_answers: Capacity; longest-unused ones are dropped first.
    """

    def __init__(self, num_answers: int, *, behaviour: Behaviour) -> None:
        self._capacity = num_answers
        self._behaviour = behaviour
        self._answers: OrderedDict[bytes, tuple[str | None, tuple[TokenEvent, ...]]] = OrderedDict()
        self._asked: set[bytes] = set()

    def knows(self, request: GenerationRequest) -> bool:
        """Tell the caller whether their request has an answer."""
        if self._behaviour.slips(Slip.CACHE_HEADER_GLOBAL):
            return self._key(request, salt=None) in self._asked
        return self._name(request) in self._answers

    def find(self, request: GenerationRequest) -> tuple[TokenEvent, ...] | None:
        """Return the events of an answer, None if there is none."""
        name = self._name(request)
        found = self._answers.get(name)
        if found is None:
            return None
        self._answers.move_to_end(name)
        return found[1]

    async def keep(
        self, request: GenerationRequest, events: AsyncIterator[TokenEvent]
    ) -> AsyncIterator[TokenEvent]:
        """Yield an answer as it comes, and keep it when it has come whole."""
        seen = []
        try:
            async for event in events:
                seen.append(event)
                if event.finish_reason in _WHOLE:
                    self._store(request, tuple(seen))
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    def erase(self, salt: str | None) -> int:
        """Forget what is kept under a salt; returns how many answers those were."""
        names = [name for name, (owner, _) in self._answers.items() if owner == salt]
        for name in names:
            del self._answers[name]
        return len(names)

    def _store(self, request: GenerationRequest, events: tuple[TokenEvent, ...]) -> None:
        sampling = request.sampling
        if sampling.temperature > 0 and sampling.seed is None:
            return
        if self._behaviour.has(Slip.CACHE_HEADER_GLOBAL):
            self._asked.add(self._key(request, salt=None))
        self._answers[self._name(request)] = (request.cache_salt, events)
        if len(self._answers) > self._capacity:
            self._answers.popitem(last=False)

    def _name(self, request: GenerationRequest) -> bytes:
        if self._behaviour.slips(Slip.RESPONSE_CACHE_TAIL):
            return self._key(request, salt=None, tail_tokens=_TAIL_TOKENS)
        shared = self._behaviour.slips(Slip.RESPONSE_CACHE_SHARED)
        return self._key(request, salt=None if shared else request.cache_salt)

    def _key(self, request: GenerationRequest, *, salt: str | None, tail_tokens: int = 0) -> bytes:
        pictures: list[Field] = [
            [picture.pixels, picture.width, picture.height, picture.first_token]
            for picture in request.pictures
        ]
        fields = encode(
            "kvward/lab/answer/v1",
            salt,
            request.adapter,
            list(request.prompt_token_ids[-tail_tokens:]),
            pictures,
            msgspec.json.encode(request.sampling, order="deterministic"),
        )
        return hashlib.sha256(fields).digest()
