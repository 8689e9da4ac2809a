"""Times of one probe scope as they are read: medians, evidence both ways, the share of hits."""

import numpy as np
import pytest

from kvward.audit.detectors.timing import TimingReading, read_times
from kvward.audit.stats.betting import TimedPair


def pairs(hit_mean: float, miss_mean: float, count: int, *, seed: int) -> list[TimedPair]:
    """Primed probes around exp(`hit_mean`) ms, unprimed ones around exp(`miss_mean`) ms."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        primed = int(1e6 * random.lognormal(hit_mean, 0.2))
        other = int(1e6 * random.lognormal(miss_mean, 0.2))
        coin = int(random.integers(1, 3))
        times = (primed, other) if coin == 1 else (other, primed)
        found.append(TimedPair(first_ns=times[0], second_ns=times[1], coin=coin))
    return found


CONTROL = pairs(1.0, 2.5, 40, seed=1)


def read(subject: list[TimedPair]) -> TimingReading:
    return read_times(subject, control=CONTROL, confidence=0.95)


def test_nothing_gives_no_evidence_and_no_bound() -> None:
    reading = read_times([], control=[], confidence=0.95)
    assert (reading.num_pairs, reading.num_faster) == (0, 0)
    assert reading.log_e_max == reading.log_e_slower == 0.0
    assert reading.median_primed_ns is reading.median_unprimed_ns is None
    assert reading.hit_fraction_bound is None


def test_hits_give_evidence_and_no_bound() -> None:
    reading = read(pairs(1.0, 2.5, 40, seed=2))
    assert reading.num_faster == 40
    assert reading.log_e_max > np.log(9_000)
    assert reading.log_e_slower < np.log(20)
    assert reading.hit_fraction_bound is None
    assert reading.median_primed_ns == pytest.approx(1e6 * np.exp(1.0), rel=0.1)
    assert reading.median_unprimed_ns == pytest.approx(1e6 * np.exp(2.5), rel=0.1)


def test_misses_give_no_evidence_and_a_bound() -> None:
    reading = read(pairs(2.5, 2.5, 40, seed=3))
    assert reading.log_e_max < np.log(20)
    assert reading.log_e_slower < np.log(20)
    assert reading.hit_fraction_bound is not None
    assert reading.hit_fraction_bound <= 0.25


def test_slower_probes_are_kept_apart_from_hits() -> None:
    reading = read(pairs(3.2, 2.5, 40, seed=4))
    assert reading.log_e_max < np.log(20)
    assert reading.log_e_slower > np.log(9_000)
    assert reading.num_faster == 0


def test_every_fifth_probe_a_hit_is_not_bounded_away() -> None:
    mixed = pairs(1.0, 2.5, 8, seed=5) + pairs(2.5, 2.5, 32, seed=6)
    bound = read(mixed).hit_fraction_bound
    assert bound is None or bound >= 0.2


def test_without_a_control_there_is_no_bound() -> None:
    reading = read_times(pairs(2.5, 2.5, 40, seed=7), control=[], confidence=0.95)
    assert reading.hit_fraction_bound is None
    assert reading.num_pairs == 40


def test_evidence_reached_on_the_way_is_not_lost() -> None:
    """Valid at any moment, so the largest counts, though later pairs lose it again."""
    reading = read(pairs(1.0, 2.5, 30, seed=8) + pairs(3.5, 2.5, 30, seed=9))
    assert len(reading.log_e_path) == 60
    assert reading.log_e_max == max(reading.log_e_path)
    assert reading.log_e_max > reading.log_e_path[-1]
