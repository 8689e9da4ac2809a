"""Whether an attacker does better than chance, with a stated probability of saying so wrongly.

All tests are exact, whatever the strategy: keys, prompt and coin are drawn independently of what a
strategy does, ties are broken by a fair draw, and a prediction uses earlier worlds only. Together
they raise a false alarm with a probability of at most `FALSE_ALARM`, by the union bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from scipy.stats import binom, kstwo

FALSE_ALARM = 1e-6
_TESTS_OF_A_RANK = 4
_TESTS_OF_A_BIT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a strategy came to.

    Attributes:
        worlds: How often it was tried.
        first: How often the right guess came first; for a bit, how often it was right.
        p_value: The smallest of its tests', times how many tests there are.
    """

    strategy: str
    worlds: int
    first: int
    p_value: float

    @property
    def wins(self) -> bool:
        """Tell whether this is more than chance; see `FALSE_ALARM`."""
        return self.p_value <= FALSE_ALARM


def judge_ranks(
    ranks: dict[str, list[int]], bits: dict[str, list[bool]], *, num_guesses: int
) -> list[Verdict]:
    """Judge all strategies together.

    Args:
        ranks: For each strategy the right guess's rank in each world, 0 for the first.
        bits: For each strategy whether its prediction was right, in each world.
    """
    num_tests = _TESTS_OF_A_RANK * len(ranks) + _TESTS_OF_A_BIT * len(bits)
    return [
        *(
            Verdict(
                strategy=f"cached: {strategy}",
                worlds=len(found),
                first=found.count(0),
                p_value=min(1.0, num_tests * min(_rank_tests(found, num_guesses))),
            )
            for strategy, found in ranks.items()
        ),
        *(
            Verdict(
                strategy=f"shared: {strategy}",
                worlds=len(right),
                first=sum(right),
                p_value=min(1.0, num_tests * _two_sided(sum(right), len(right), 0.5)),
            )
            for strategy, right in bits.items()
        ),
    ]


def _rank_tests(ranks: Sequence[int], num_guesses: int) -> Iterable[float]:
    """Yield p-values against a uniform rank: first, in the first 1 %, first half, whole shape."""
    worlds = len(ranks)
    yield float(binom.sf(ranks.count(0) - 1, worlds, 1 / num_guesses))
    top = num_guesses // 100
    yield float(binom.sf(sum(rank < top for rank in ranks) - 1, worlds, top / num_guesses))
    half = num_guesses // 2
    yield _two_sided(sum(rank < half for rank in ranks), worlds, half / num_guesses)
    # Ranks are discrete, which makes the distance smaller than its law by one step at most.
    places = sorted((rank + 0.5) / num_guesses for rank in ranks)
    distance = max(
        max(place - number / worlds, (number + 1) / worlds - place)
        for number, place in enumerate(places)
    )
    yield float(kstwo.sf(distance - 1 / num_guesses, worlds))


def _two_sided(successes: int, trials: int, chance: float) -> float:
    tails = binom.sf(successes - 1, trials, chance), binom.cdf(successes, trials, chance)
    return min(1.0, 2 * float(min(tails)))


class Predictor:
    """Learns from earlier worlds, whose answer it is told, which scores mean that it is shared."""

    def __init__(self) -> None:
        self._scores: dict[bool, list[float]] = {False: [], True: []}

    def predict(self, score: float) -> bool:
        """Say whether this world's tenants share: which mean is nearer?"""
        if not all(self._scores.values()):
            return True
        distance = {answer: abs(score - fmean(seen)) for answer, seen in self._scores.items()}
        return distance[True] < distance[False]

    def learn(self, score: float, *, is_shared: bool) -> None:
        """Take in what was true."""
        self._scores[is_shared].append(score)
