"""The phase of pairs: one after the other, or all behind a flush that empties the device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from kvward.audit.pairs import (
    After,
    Alter,
    Between,
    Change,
    Pair,
    Send,
    prime_pair,
    probe_pair,
    run_pair,
)

_BY_THE_OPERATOR = frozenset({Change.ERASE, Change.RELOAD})

Flush = Callable[[], Awaitable[None]]


class PairPhase:
    """Runs pairs.

    Args:
        lifetime_s: How long state is waited for that has to be past it.
        send: Sends a call of a pair, records it and returns the reply.
        change: Makes what a pair needs to have changed between its priming and its probes.
        between, after: Called around the probes of a pair that is run by itself.
    """

    def __init__(
        self, *, lifetime_s: float, send: Send, change: Alter, between: Between, after: After
    ) -> None:
        self._lifetime_s = lifetime_s
        self._send = send
        self._change = change
        self._between = between
        self._after = after

    async def run(self, pairs: Sequence[Pair]) -> None:
        """Run pairs one after the other; those that wait for the end of a lifetime come last."""
        for pair in pairs:
            if pair.change is not Change.EXPIRE:
                await run_pair(
                    pair,
                    self._send,
                    change=self._change,
                    between=self._between,
                    after=self._after,
                )
        expiring = [pair for pair in pairs if pair.change is Change.EXPIRE]
        hints = [await prime_pair(pair, self._send) for pair in expiring]
        primed_at = time.monotonic()
        for pair, hint in zip(expiring, hints, strict=True):
            await self._wait_out_lifetime(primed_at)
            await probe_pair(pair, self._send, hint=hint)

    async def run_behind(
        self, pairs: Sequence[Pair], flush: Flush, *, warm_up: Callable[[], Awaitable[None]]
    ) -> None:
        """Prime everything, empty the device, probe everything: what is found was elsewhere.

        Args:
            flush: Empties the device, and returns when the target answers again.
            warm_up: Sends what is not measured, because a target's first answers are slow.
        """
        # A change may reach further than one pair, so whatever has to stay comes after it.
        changed = [pair for pair in pairs if pair.change in _BY_THE_OPERATOR]
        for batch in (changed, [pair for pair in pairs if pair not in changed]):
            if batch:
                await self._run_batch(batch, flush, warm_up)

    async def _run_batch(
        self, pairs: Sequence[Pair], flush: Flush, warm_up: Callable[[], Awaitable[None]]
    ) -> None:
        """Prime pairs, move them out of the device, make their changes there, probe them."""
        hints = {(pair.scope, pair.number): await prime_pair(pair, self._send) for pair in pairs}
        await flush()
        for pair in pairs:
            if pair.change in _BY_THE_OPERATOR:
                await self._change(pair)
        await warm_up()
        primed_at = time.monotonic()
        # State past its lifetime is looked for last, or what has to be there would be past it too.
        for pair in sorted(pairs, key=lambda pair: pair.change is Change.EXPIRE):
            if pair.change is Change.EXPIRE:
                await self._wait_out_lifetime(primed_at)
            await probe_pair(pair, self._send, hint=hints[pair.scope, pair.number])

    async def _wait_out_lifetime(self, primed_at: float) -> None:
        """Return when all that was primed by a time of the monotonic clock is past its lifetime."""
        await asyncio.sleep(max(0.0, primed_at + self._lifetime_s - time.monotonic()))
