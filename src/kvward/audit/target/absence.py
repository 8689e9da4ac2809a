"""Was the target away? What shows, from outside, that its own memory was lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

WATCH_S = 0.25


class Watched(Protocol):
    """A target whose addresses can be asked whether they answer."""

    @property
    def urls(self) -> Sequence[str]:
        """Return its addresses."""

    async def answers_at(self, replica: int) -> bool:
        """Tell whether an address answers now."""


class Absence:
    """Which addresses were away at some time while somebody watched."""

    def __init__(self, num_addresses: int) -> None:
        self._present = set(range(num_addresses))

    @property
    def is_complete(self) -> bool:
        """Tell whether each of them was."""
        return not self._present

    async def watch(self, target: Watched) -> None:
        """Look until cancelled, or until each address was away."""
        while self._present:
            for replica in sorted(self._present):
                if not await target.answers_at(replica):
                    self._present.discard(replica)
            await asyncio.sleep(WATCH_S)


@contextlib.asynccontextmanager
async def watch_absence(target: Watched) -> AsyncIterator[Absence]:
    """Watch a target for as long as the block runs."""
    absence = Absence(len(target.urls))
    watching = asyncio.create_task(absence.watch(target))
    try:
        yield absence
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
