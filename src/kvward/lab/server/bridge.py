"""From the engine's thread to the event loop, many events for one wake-up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvward.lab.behaviour import SOUND, Behaviour, Slip
from kvward.lab.interface import Engine, GenerationRequest, TokenEvent


@dataclass(slots=True, kw_only=True, eq=False)
class _Mailbox:
    """A place for the events of one request at a time.

    Attributes:
        generation: Which request of this place it is for now; higher for every next one.
        queue: None while nobody waits.
    """

    generation: int = 0
    queue: asyncio.Queue[TokenEvent] | None = None


class _Letter(NamedTuple):
    place: int
    generation: int
    event: TokenEvent


class Bridge:
    """Hands events of the engine to the requests that wait for them.

    Mailboxes are used again; what still comes for one that has left is dropped.
    """

    def __init__(self, engine: Engine, *, behaviour: Behaviour = SOUND) -> None:
        self._engine = engine
        self._behaviour = behaviour
        self._mailboxes: list[_Mailbox] = []
        self._unused: list[int] = []
        self._arrived: deque[_Letter] = deque()
        self._woken = False

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenEvent]:
        """Yield the events of one new request; leaving early cancels it.

        Raises:
            UsageError: the engine refuses the request.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[TokenEvent] = asyncio.Queue()
        place, generation = self._open(queue)
        finished = False

        def on_event(event: TokenEvent) -> None:  # in the engine's thread
            self._arrived.append(_Letter(place, generation, event))
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop has ended before us
                    loop.call_soon_threadsafe(self._drain)

        try:
            self._engine.submit(request, on_event)
        except BaseException:
            self._close(place)
            raise
        try:
            while not finished:
                event = await queue.get()
                finished = event.finish_reason is not None
                yield event
        finally:
            self._close(place)
            if not finished:
                self._engine.cancel(request.request_id)

    def _open(self, queue: asyncio.Queue[TokenEvent]) -> tuple[int, int]:
        if not self._unused:
            self._unused.append(len(self._mailboxes))
            self._mailboxes.append(_Mailbox())
        place = self._unused.pop()
        mailbox = self._mailboxes[place]
        mailbox.generation += 1
        mailbox.queue = queue
        return place, mailbox.generation

    def _close(self, place: int) -> None:
        self._mailboxes[place].queue = None
        self._unused.append(place)

    def _drain(self) -> None:
        # Reset first: an event that arrives meanwhile wakes us again, at worst for nothing.
        self._woken = False
        letters = []
        while self._arrived:
            letters.append(self._arrived.popleft())
        for place, generation, event in self._mix_up(letters):
            mailbox = self._mailboxes[place]
            if mailbox.queue is None:
                continue
            if generation == mailbox.generation or (
                event.token_id is not None and self._behaviour.slips(Slip.REQUEST_ID_RECYCLED)
            ):
                mailbox.queue.put_nowait(event)

    def _mix_up(self, letters: list[_Letter]) -> list[_Letter]:
        """Return the letters; with tokens of two requests exchanged where that is planted."""
        if not self._behaviour.has(Slip.STREAM_MIXED):
            return letters
        first_of: dict[int, int] = {}
        for number, letter in enumerate(letters):
            if letter.event.token_id is not None:
                first_of.setdefault(letter.place, number)
        numbers = list(first_of.values())
        if len(numbers) < 2 or not self._behaviour.slips(Slip.STREAM_MIXED):
            return letters
        one = numbers.pop(self._behaviour.pick(Slip.STREAM_MIXED, len(numbers)))
        other = numbers[self._behaviour.pick(Slip.STREAM_MIXED, len(numbers))]
        mixed = letters.copy()
        mixed[one] = _with_tokens_of(letters[one], letters[other].event)
        mixed[other] = _with_tokens_of(letters[other], letters[one].event)
        return mixed


def _with_tokens_of(letter: _Letter, event: TokenEvent) -> _Letter:
    changed = replace(
        letter.event,
        token_id=event.token_id,
        logprob=event.logprob,
        top_logprobs=event.top_logprobs,
    )
    return letter._replace(event=changed)
