"""Times to first token: is the primed prompt answered faster?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvward.audit.stats.betting import TimedPair, bet_on_faster, bet_on_slower
from kvward.audit.stats.hit_fraction import hit_fraction_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingReading:
    """What the pairs of one probe scope say.

    Attributes:
        num_faster: Pairs in which the primed prompt was answered faster.
        log_e_path: Natural log of the evidence for "primed is faster" after each pair.
        log_e_slower: The largest evidence for "primed is slower", an anomaly.
        median_primed_ns, median_unprimed_ns: None without pairs.
        hit_fraction_bound: Model-based upper bound on the share of hits; None if none was reached.
    """

    num_pairs: int
    num_faster: int
    log_e_path: tuple[float, ...]
    log_e_slower: float
    median_primed_ns: int | None
    median_unprimed_ns: int | None
    hit_fraction_bound: float | None

    @property
    def log_e_max(self) -> float:
        """Return the largest evidence reached: valid at any moment, so at that one too."""
        return max(self.log_e_path, default=0.0)


def read_times(
    pairs: Sequence[TimedPair],
    *,
    control: Sequence[TimedPair],
    confidence: float,
) -> TimingReading:
    """Read the pairs of a scope.

    Args:
        control: Pairs of the positive control; their primed times show how a hit looks here.
    """
    path = bet_on_faster(pairs)
    slower = bet_on_slower(pairs)
    primed = [pair.primed_ns for pair in pairs]
    misses = [pair.unprimed_ns for pair in (*pairs, *control)]
    return TimingReading(
        num_pairs=len(pairs),
        num_faster=sum(pair.primed_ns < pair.unprimed_ns for pair in pairs),
        log_e_path=tuple(float(value) for value in path),
        log_e_slower=float(slower.max()) if len(slower) else 0.0,
        median_primed_ns=int(np.median(primed)) if primed else None,
        median_unprimed_ns=int(np.median([p.unprimed_ns for p in pairs])) if pairs else None,
        hit_fraction_bound=hit_fraction_bound(
            primed,
            hits_ns=[pair.primed_ns for pair in control],
            misses_ns=misses,
            confidence=confidence,
        ),
    )
