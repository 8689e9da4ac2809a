"""Test by betting whether primed probes answer faster, from coin-flipped pairs.

In each pair a fair coin decides which of two fresh prompts was primed. If nothing crosses, the coin
is independent of both times, whatever drift, tails and load there are; so a gambler who bets on the
coin after seeing the times, with stakes fixed before the coin is shown, cannot expect to grow rich.
The wealth E is an e-value at every moment: P(E ever reaches 1 / alpha) <= alpha.

Eight bettors share the starting capital. Five bet fixed stakes on the faster one. Three learn from
past pairs how much likelier each time is for a primed than for an unprimed probe; that ratio is
forced to fall with time, so that only *faster* pays. Times enter by rank only.

Source: testing by betting (Shekhar and Ramdas 2021; Podkopaev and Ramdas 2023); the mixture and the
order constraint are worked out in the project's audit methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import logsumexp

_SIGN_STAKES = (0.1, 0.25, 0.5, 0.75, 0.95)
_MODEL_STAKES = (0.3, 0.6, 0.95)
_FIRST_MODEL_PAIR = 4
_MAX_BINS = 16
_REFIT_EVERY = 2

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPair:
    """Times of the two prompts of a pair, and which of them was primed.

    Attributes:
        first_ns, second_ns: Time to first token of prompt 1 and of prompt 2.
        coin: 1 or 2.
    """

    first_ns: int
    second_ns: int
    coin: int

    @property
    def primed_ns(self) -> int:
        """Return the time of the primed prompt."""
        return self.first_ns if self.coin == 1 else self.second_ns

    @property
    def unprimed_ns(self) -> int:
        """Return the time of the other prompt."""
        return self.second_ns if self.coin == 1 else self.first_ns


def bet_on_faster(pairs: Sequence[TimedPair]) -> FloatArray:
    """Return log E after each pair, for "primed is faster". Natural logarithm."""
    times = np.array([(pair.first_ns, pair.second_ns) for pair in pairs], np.float64).reshape(-1, 2)
    coins = np.array([1.0 if pair.coin == 1 else -1.0 for pair in pairs])
    return _log_wealth(times, coins)


def bet_on_slower(pairs: Sequence[TimedPair]) -> FloatArray:
    """Return log E after each pair, for "primed is slower": an anomaly, never a cache hit."""
    times = np.array([(pair.first_ns, pair.second_ns) for pair in pairs], np.float64).reshape(-1, 2)
    coins = np.array([1.0 if pair.coin == 1 else -1.0 for pair in pairs])
    return _log_wealth(-times, coins)


def _log_wealth(times: FloatArray, coins: FloatArray) -> FloatArray:
    num_bettors = len(_SIGN_STAKES) + len(_MODEL_STAKES)
    wealth = np.zeros(num_bettors)
    path = np.empty(len(coins))
    model: _RatioModel | None = None
    for number, ((first, second), coin) in enumerate(zip(times, coins, strict=True)):
        # Everything up to here is from earlier pairs: the stakes do not know this coin.
        if number >= _FIRST_MODEL_PAIR and (model is None or number % _REFIT_EVERY == 0):
            model = _RatioModel(times[:number], coins[:number])
        faster_is_first = float(np.sign(second - first))
        learned = model.lean(first, second) if model is not None else 0.0
        bets = [stake * faster_is_first for stake in _SIGN_STAKES]
        bets += [stake * learned for stake in _MODEL_STAKES]
        wealth += [log1p(bet * coin) for bet in bets]
        path[number] = logsumexp(wealth) - log(num_bettors)
    return path


class _RatioModel:
    """How much likelier a time is for a primed probe, as a falling step function of time."""

    def __init__(self, times: FloatArray, coins: FloatArray) -> None:
        is_first = coins > 0
        primed = np.where(is_first, times[:, 0], times[:, 1])
        unprimed = np.where(is_first, times[:, 1], times[:, 0])
        num_bins = int(min(_MAX_BINS, max(2, 2 + sqrt(len(coins)))))
        inner = np.linspace(0, 1, num_bins + 1)[1:-1]
        self._edges = np.quantile(times.ravel(), inner)
        hits, misses = self._count(primed, num_bins), self._count(unprimed, num_bins)
        ratio = np.log(hits / hits.sum()) - np.log(misses / misses.sum())
        self._log_ratio = isotonic_regression(ratio, weights=hits + misses, increasing=False).x

    def _count(self, values: FloatArray, num_bins: int) -> FloatArray:
        bins = np.searchsorted(self._edges, values)
        counts = np.bincount(bins, minlength=num_bins).astype(np.float64)
        return counts + 1  # nothing is impossible

    def lean(self, first: float, second: float) -> float:
        """Return between -1 and 1 how sure the model is that the first was primed."""
        one, two = self._log_ratio[np.searchsorted(self._edges, [first, second])]
        return float(np.tanh((one - two) / 2))
