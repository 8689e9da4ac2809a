"""Copies on their way from the host tier into the engine's pages: begun now, done some steps later.

The block that a copy goes to belongs to the copy until it has landed, whoever else has it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from kvward.lab.interface import FloatArray


@dataclass(slots=True, kw_only=True, eq=False)
class Transfer:
    """One block on its way.

    Attributes:
        content: A copy of its own.
        steps_left: Until it lands, at least 1.
        land: Writes the content, and does what comes after.
        owns_block: Whether the pool counts this copy as a holder of the block.
    """

    block: int
    content: FloatArray
    steps_left: int
    land: Callable[[Transfer], None]
    owns_block: bool = True


class Transfers:
    """Everything that is on its way, in the order in which it was begun."""

    def __init__(self) -> None:
        self._flying: list[Transfer] = []

    def begin(self, transfer: Transfer) -> None:
        """Send a block on its way."""
        self._flying.append(transfer)

    def iter_to(self, blocks: Container[int]) -> Iterator[Transfer]:
        """Yield what is on its way to some blocks."""
        return (transfer for transfer in self._flying if transfer.block in blocks)

    def step(self) -> None:
        """Let one step pass; what is due lands."""
        flying, self._flying = self._flying, []
        for transfer in flying:
            transfer.steps_left -= 1
            if transfer.steps_left > 0:
                self._flying.append(transfer)
            else:
                transfer.land(transfer)

    def __len__(self) -> int:
        return len(self._flying)
