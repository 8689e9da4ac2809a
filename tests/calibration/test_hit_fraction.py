"""The bound on the share of hits is wrong at most as often as it says, also on real times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvward.audit.stats.hit_fraction import hit_fraction_bound

Draw = Callable[[int], np.ndarray]


def bounds_for(
    hits: Draw, misses: Draw, *, share: float, num_runs: int, random: np.random.Generator
) -> list[float]:
    """Bounds from 40 probes of which a share are hits; 1 where nothing was excluded."""
    found = []
    for _ in range(num_runs):
        is_hit = random.random(40) < share
        probes = np.where(is_hit, hits(40), misses(40))
        bound = hit_fraction_bound(
            (1e9 * probes).astype(int).tolist(),
            hits_ns=(1e9 * hits(40)).astype(int).tolist(),
            misses_ns=(1e9 * misses(80)).astype(int).tolist(),
            confidence=0.95,
        )
        found.append(1.0 if bound is None else bound)
    return found


# At exactly 5 % wrong, 80 runs are wrong more than 13 times with probability 6e-5.
NUM_RUNS, MAX_WRONG = 80, 13


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_true_share_is_rarely_above_the_bound_on_real_times(
    real_times: dict[str, Any], share: float
) -> None:
    random = np.random.default_rng(31)
    hits, misses = np.array(real_times["hit_s"]), np.array(real_times["miss_s"])
    found = bounds_for(
        lambda n: random.choice(hits, n),
        lambda n: random.choice(misses, n),
        share=share,
        num_runs=NUM_RUNS,
        random=random,
    )
    assert sum(bound < share for bound in found) <= MAX_WRONG


@pytest.mark.parametrize("gap", [0.0, 0.5, 1.0, 5.0], ids=lambda gap: f"{gap:g} sd")
@pytest.mark.parametrize("share", [0.05, 0.25])
def test_true_share_is_rarely_above_the_bound_at_any_separation(gap: float, share: float) -> None:
    random = np.random.default_rng(32)
    found = bounds_for(
        lambda n: np.exp(random.normal(-4 - 0.2 * gap, 0.2, n)),
        lambda n: np.exp(random.normal(-4, 0.2, n)),
        share=share,
        num_runs=NUM_RUNS,
        random=random,
    )
    assert sum(bound < share for bound in found) <= MAX_WRONG


def test_clean_probes_of_a_separated_target_get_a_useful_bound(real_times: dict[str, Any]) -> None:
    random = np.random.default_rng(33)
    hits, misses = np.array(real_times["hit_s"]), np.array(real_times["miss_s"])
    found = bounds_for(
        lambda n: random.choice(hits, n),
        lambda n: random.choice(misses, n),
        share=0.0,
        num_runs=40,
        random=random,
    )
    weak = np.median(hits) > 0.9 * np.median(misses)
    assert np.median(found) <= (0.5 if weak else 0.15)


def test_load_that_slows_the_probes_only_does_not_hide_hits() -> None:
    """Probes under twice the load of the control, every one of them a hit: no low bound."""
    random = np.random.default_rng(34)

    def times(mean: float, count: int) -> list[int]:
        return (1e6 * random.lognormal(mean, 0.2, count)).astype(int).tolist()

    for _ in range(20):
        bound = hit_fraction_bound(
            times(1 + np.log(2), 40), hits_ns=times(1, 40), misses_ns=times(2.5, 80),
            confidence=0.95,
        )  # fmt: skip
        assert bound is None or bound >= 0.5


def test_more_confidence_never_gives_a_lower_bound() -> None:
    random = np.random.default_rng(35)

    def times(mean: float, count: int) -> list[int]:
        return (1e6 * random.lognormal(mean, 0.2, count)).astype(int).tolist()

    probes, hits, misses = times(2.5, 40), times(1, 40), times(2.5, 80)
    levels = (0.8, 0.95, 0.999)
    found = [
        hit_fraction_bound(probes, hits_ns=hits, misses_ns=misses, confidence=level) or 1.0
        for level in levels
    ]
    assert found == sorted(found)
    assert found[0] < found[-1]
