"""How often could probes of a scope have been hits, given how hits and misses look here?

Model-based: hit times come from the positive control, miss times from unprimed probes of the same
run. Not finding a difference is worth something only through such a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import gaussian_kde

_GRID = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75)
_MIN_TIMES = 8
_OUTLIER_SHARE = 0.02  # any time may come from neither; keeps one odd value from deciding

FloatArray = NDArray[np.float64]


def hit_fraction_bound(
    probes_ns: Sequence[int],
    *,
    hits_ns: Sequence[int],
    misses_ns: Sequence[int],
    confidence: float,
) -> float | None:
    """Return an upper bound on the share of probes that were hits.

    For a share p0 the likelihood ratio of "no hits" to "a share of p0" is an e-value against p0
    when the densities are right; p0 is excluded when it reaches 1 / (1 - confidence).

    Args:
        probes_ns: Times of the primed probes of the scope in question.
        hits_ns: Times known to be hits; at least eight.
        misses_ns: Times known to be misses, of the same run; at least eight.
    Returns:
        The smallest excluded share of a grid from 0.01 to 0.75, or None when not even 0.75 can
        be excluded, or there are too few times to say anything.
    """
    if min(len(probes_ns), len(hits_ns), len(misses_ns)) < _MIN_TIMES:
        return None
    logs = [np.log(np.asarray(values, np.float64)) for values in (probes_ns, hits_ns, misses_ns)]
    everything = np.concatenate(logs)
    span = float(everything.max() - everything.min())
    if span == 0 or np.ptp(logs[1]) == 0 or np.ptp(logs[2]) == 0:
        return None
    hit_density = _density(logs[1], logs[0], span)
    miss_density = _density(logs[2], logs[0], span)
    needed = -np.log(1 - confidence)
    for share in _GRID:
        mixed = (1 - share) * miss_density + share * hit_density
        if float(np.sum(np.log(miss_density) - np.log(mixed))) >= needed:
            return share
    return None


def _density(sample: FloatArray, at: FloatArray, span: float) -> FloatArray:
    smooth: FloatArray = gaussian_kde(sample)(at)
    return (1 - _OUTLIER_SHARE) * smooth + _OUTLIER_SHARE / span
