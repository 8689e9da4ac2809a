"""Statistics: exact where they are exact, calibrated where they bet. All seeded."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from kvward.audit.stats.betting import TimedPair, bet_on_faster, bet_on_slower
from kvward.audit.stats.bounds import bound_with_sensitivity, lower_rate, upper_rate
from kvward.audit.stats.hit_fraction import hit_fraction_bound

REAL = json.loads(
    (Path(__file__).parents[2] / "data" / "prompt_cache_times.json").read_text(encoding="utf-8")
)


def pairs_of(
    hits: np.ndarray, misses: np.ndarray, coins: np.ndarray, *, scale: float = 1e6
) -> list[TimedPair]:
    return [
        TimedPair(
            first_ns=int(scale * (hit if coin == 1 else miss)),
            second_ns=int(scale * (miss if coin == 1 else hit)),
            coin=int(coin),
        )
        for hit, miss, coin in zip(hits, misses, coins, strict=True)
    ]


def test_upper_rate_is_the_rule_of_three_and_clopper_pearson() -> None:
    assert upper_rate(0, 9_985, confidence=0.95) == pytest.approx(3e-4, rel=1e-3)
    assert upper_rate(0, 600, confidence=0.95) == pytest.approx(1 - 0.05 ** (1 / 600))
    limit = upper_rate(3, 10_000, confidence=0.95)
    assert binom.cdf(3, 10_000, limit) == pytest.approx(0.05)
    assert upper_rate(0, 0, confidence=0.95) == 1
    assert upper_rate(5, 5, confidence=0.95) == 1


def test_lower_rate_mirrors_upper_rate() -> None:
    assert lower_rate(0, 60, confidence=0.95) == 0
    limit = lower_rate(57, 60, confidence=0.95)
    assert binom.sf(56, 60, limit) == pytest.approx(0.05)


def test_without_sensitivity_nothing_is_bounded() -> None:
    assert bound_with_sensitivity(0.01, 0.0) == 1
    assert bound_with_sensitivity(0.01, 0.5) == 0.02
    assert bound_with_sensitivity(0.9, 0.5) == 1


@pytest.mark.parametrize("drift", [False, True], ids=["independent", "drifting"])
def test_no_effect_crosses_at_most_as_often_as_promised(drift: bool) -> None:
    """At E >= 20 the promise is 5 %; 400 runs at exactly 5 % exceed 40 with probability 1e-5."""
    random = np.random.default_rng(11)
    crossed = 0
    for _ in range(400):
        times = random.lognormal(2, 0.5, (60, 2))
        if drift:
            load = np.cumsum(random.normal(0, 0.2, 60))
            times *= np.exp(load)[:, None]
        coins = random.integers(1, 3, 60)
        pairs = [
            TimedPair(first_ns=int(1e6 * a), second_ns=int(1e6 * b), coin=int(c))
            for (a, b), c in zip(times, coins, strict=True)
        ]
        crossed += bet_on_faster(pairs).max() >= np.log(20)
    assert crossed <= 40


def test_slower_primed_probes_are_an_anomaly_and_never_a_hit() -> None:
    random = np.random.default_rng(2)
    slow, fast = random.lognormal(3, 0.3, 100), random.lognormal(2, 0.3, 100)
    pairs = pairs_of(slow, fast, random.integers(1, 3, 100))
    assert bet_on_faster(pairs).max() < np.log(20)
    assert bet_on_slower(pairs).max() > np.log(1e6)


def test_faster_primed_probes_are_found_and_are_no_anomaly() -> None:
    random = np.random.default_rng(3)
    slow, fast = random.lognormal(3, 0.3, 40), random.lognormal(2, 0.3, 40)
    pairs = pairs_of(fast, slow, random.integers(1, 3, 40))
    assert bet_on_faster(pairs).max() > np.log(1e6)
    assert bet_on_slower(pairs).max() < np.log(20)


def test_stakes_do_not_know_the_coin() -> None:
    """Flipping the last coin must turn the last factor E' / E = 1 + b into 1 - b."""
    random = np.random.default_rng(4)
    pairs = pairs_of(random.lognormal(2, 0.3, 30), random.lognormal(2.5, 0.3, 30),
                     random.integers(1, 3, 30))  # fmt: skip
    last = pairs[-1]
    flipped = [*pairs[:-1], TimedPair(first_ns=last.first_ns, second_ns=last.second_ns,
                                      coin=3 - last.coin)]  # fmt: skip
    one, two = np.exp(bet_on_faster(pairs)), np.exp(bet_on_faster(flipped))
    assert one[-1] + two[-1] == pytest.approx(2 * one[-2])


def test_wealth_starts_at_one_and_ties_pay_nothing() -> None:
    tie = [TimedPair(first_ns=5, second_ns=5, coin=1)] * 10
    assert np.allclose(bet_on_faster(tie), 0)
    assert len(bet_on_faster([])) == 0


@pytest.mark.parametrize("case", REAL["cases"], ids=lambda case: case["name"])
def test_real_provider_times_are_told_apart(case: dict[str, object]) -> None:
    """Times of providers that were known to share caches, resampled with a fixed seed."""
    random = np.random.default_rng(9)
    hits, misses = np.array(case["hit_s"]), np.array(case["miss_s"])
    found = 0
    for _ in range(10):
        pairs = pairs_of(random.choice(hits, 250), random.choice(misses, 250),
                         random.integers(1, 3, 250), scale=1e9)  # fmt: skip
        found += bet_on_faster(pairs).max() >= np.log(1e3)
        null = pairs_of(random.choice(misses, 250), random.choice(misses, 250),
                        random.integers(1, 3, 250), scale=1e9)  # fmt: skip
        assert bet_on_faster(null).max() < np.log(1e3)
    assert found == 10


def test_hit_fraction_is_bounded_when_there_are_no_hits_and_not_when_there_are() -> None:
    random = np.random.default_rng(6)

    def draw(mean: float, count: int) -> list[int]:
        return (1e6 * random.lognormal(mean, 0.2, count)).astype(int).tolist()

    control = {"hits_ns": draw(1, 40), "misses_ns": draw(2.5, 80), "confidence": 0.95}
    clean = hit_fraction_bound(draw(2.5, 40), **control)
    assert clean is not None
    assert clean <= 0.15
    assert hit_fraction_bound(draw(1, 40), **control) is None
    mixed = hit_fraction_bound(draw(2.5, 20) + draw(1, 20), **control)
    assert mixed is None or mixed > 0.5


def test_hit_fraction_says_nothing_without_enough_or_without_contrast() -> None:
    few = hit_fraction_bound([5] * 7, hits_ns=[1] * 40, misses_ns=[9] * 40, confidence=0.95)
    assert few is None
    random = np.random.default_rng(7)
    same = (1e6 * random.lognormal(2, 0.2, 120)).astype(int).tolist()
    assert hit_fraction_bound(same[:40], hits_ns=same[40:80], misses_ns=same[80:],
                              confidence=0.95) is None  # fmt: skip
