"""From the engine's thread to the event loop, many events for one wake-up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from uuid import uuid4

from kvward.lab.interface import Engine, GenerationRequest, SamplingParams, TokenEvent


class Bridge:
    """Hands events of the engine to the requests that wait for them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arrived: deque[tuple[asyncio.Queue[TokenEvent], TokenEvent]] = deque()
        self._woken = False

    async def generate(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        *,
        cache_salt: str | None,
        owner_tag: str | None,
    ) -> AsyncIterator[TokenEvent]:
        """Yield the events of one new request; leaving early cancels it.

        Raises:
            UsageError: the engine refuses the request.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[TokenEvent] = asyncio.Queue()
        request = GenerationRequest(
            request_id=uuid4().hex,
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            cache_salt=cache_salt,
            owner_tag=owner_tag,
        )

        def on_event(event: TokenEvent) -> None:  # in the engine's thread
            self._arrived.append((queue, event))
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop has ended before us
                    loop.call_soon_threadsafe(self._drain)

        self._engine.submit(request, on_event)
        finished = False
        try:
            while not finished:
                event = await queue.get()
                finished = event.finish_reason is not None
                yield event
        finally:
            if not finished:
                self._engine.cancel(request.request_id)

    def _drain(self) -> None:
        # Reset first: an event that arrives meanwhile wakes us again, at worst for nothing.
        self._woken = False
        while self._arrived:
            queue, event = self._arrived.popleft()
            queue.put_nowait(event)
