"""A scheduler that knows, from outside of all defects, who wrote what the engine attends to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from kvward.lab.model import Segment
from kvward.lab.scheduler import Scheduler

Place = tuple[str | None, int, int]  # salt, position, token


class WitnessScheduler(Scheduler):
    """Counts tokens that a request attended to and that were computed for another salt.

    What was copied from the host tier is not followed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places: dict[int, Place] = {}  # by slot: block * block_tokens + offset
        self.foreign_reads: Counter[tuple[str | None, str | None]] = Counter()
        self.stale_reads = 0  # of the own salt, but not this token at this position
        size = self._options.block_tokens
        fill = self._memory.resident.fill

        def watched_fill(block: int, content: np.ndarray) -> None:
            fill(block, content)
            for offset in range(size if len(content) else 0):
                self.places.pop(block * size + offset, None)

        self._memory.resident.fill = watched_fill  # type: ignore[method-assign]  # to see it

    def _run_segments(self, work: Any, segments: list[Segment]) -> Any:
        size = self._options.block_tokens
        for w, segment in zip(work, segments, strict=True):
            tokens = [*w.sequence.tokens[: segment.start + w.num_tokens], *w.drafts]
            for at in range(segment.start, len(tokens)):
                slot = int(segment.block_table[at // size]) * size + at % size
                self.places[slot] = (w.sequence.request.cache_salt, at, tokens[at])
        for w, segment in zip(work, segments, strict=True):
            table = segment.block_table if segment.read_table is None else segment.read_table
            reader = w.sequence.request.cache_salt
            for at in range(segment.start + w.num_tokens):
                place = self.places.get(int(table[at // size]) * size + at % size)
                if place is None:
                    continue
                if place[0] != reader:
                    self.foreign_reads[reader, place[0]] += 1
                elif place[1:] != (at, w.sequence.tokens[at]):
                    self.stale_reads += 1
        return super()._run_segments(work, segments)
