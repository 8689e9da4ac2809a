"""From outside the engine: what a scope has kept there comes back, and new blocks go there."""

from __future__ import annotations

from collections import Counter

from kvward.lab.resident import ResidentBlocks
from kvward.lab.sequence import Sequence

_RESTORED_AT_ONCE = 16


class DurableSource:
    """Copies between the pages and what a sequence's scope has outside the engine.

    Args:
        stats: Counts "restored_blocks" and "opened_blocks".
    """

    def __init__(self, resident: ResidentBlocks, *, stats: Counter[str]) -> None:
        self._resident = resident
        self._stats = stats

    def restore(self, sequence: Sequence, *, until: int) -> None:
        """Copy further blocks of a prefix in, some at a time.

        Args:
            until: Number of the first block that is not wanted.
        """
        if sequence.durable is None:
            return
        while (begin := len(sequence.held)) < until:
            numbers = range(begin, min(begin + _RESTORED_AT_ONCE, until))
            names = [sequence.names.content.name(n) for n in numbers]
            for number, content in zip(numbers, sequence.durable.load(names), strict=True):
                if content is None or not self._resident.grow(sequence):
                    return
                pages = self._resident.pages[:, :, sequence.held[number].block]
                pages[:] = content.reshape(pages.shape)
                self._resident.commit(sequence, number)
                self._resident.make_findable(sequence, number)
                sequence.num_reported += 1
                self._stats["restored_blocks"] += 1
                self._stats["opened_blocks"] += 1

    def keep(self, sequence: Sequence, number: int) -> None:
        """Keep a block outside, too: it was written under a lease that still holds."""
        if sequence.durable is not None and not sequence.leaves_nothing:
            name = sequence.names.content.name(number)
            block = sequence.held[number].block
            sequence.durable.save(name, self._resident.pages[:, :, block])
