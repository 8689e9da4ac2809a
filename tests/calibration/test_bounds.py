"""Published bounds hold as often as they say, computed exactly from the binomial."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from kvward.audit.stats.bounds import bound_with_sensitivity, lower_rate, upper_rate

RATES = np.concatenate([np.geomspace(1e-4, 0.9, 40), [0.0, 1.0]])


@pytest.mark.parametrize("num_trials", [1, 40, 300])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_limits_miss_the_truth_at_most_as_often_as_stated(
    num_trials: int, confidence: float
) -> None:
    counts = np.arange(num_trials + 1)
    upper = np.array([upper_rate(int(k), num_trials, confidence=confidence) for k in counts])
    lower = np.array([lower_rate(int(k), num_trials, confidence=confidence) for k in counts])
    assert (np.diff(upper) >= 0).all()
    assert (lower <= upper).all()
    for rate in RATES:
        chances = binom.pmf(counts, num_trials, rate)
        assert chances[upper < rate].sum() <= 1 - confidence + 1e-12
        assert chances[lower > rate].sum() <= 1 - confidence + 1e-12


@pytest.mark.parametrize(("num_trials", "num_controls"), [(600, 60), (40, 40), (400, 400)])
def test_bound_on_the_true_rate_holds_although_sensitivity_is_estimated_too(
    num_trials: int, num_controls: int
) -> None:
    """An upper limit divided by a lower limit: two chances to be wrong, still one in twenty."""
    counts, controls = np.arange(num_trials + 1), np.arange(num_controls + 1)
    visible = [upper_rate(int(k), num_trials, confidence=0.95) for k in counts]
    sensitivities = [lower_rate(int(m), num_controls, confidence=0.95) for m in controls]
    bounds = np.array([[bound_with_sensitivity(v, s) for v in visible] for s in sensitivities])
    for sensitivity in (0.55, 0.8, 0.95, 0.99, 1.0):
        seen = binom.pmf(controls, num_controls, sensitivity)
        for rate in np.geomspace(1e-3, 0.9, 25):
            events = binom.pmf(counts, num_trials, rate * sensitivity)
            missed = float(seen @ (bounds < rate) @ events)
            assert missed <= 0.05


def test_stopping_at_any_time_while_nothing_is_seen_costs_nothing() -> None:
    """A rate p stays unseen for n trials with probability (1 - p)^n; the bound is below p only
    after that has fallen under 5 %."""
    for rate in (3e-4, 1e-3, 0.01, 0.08):
        first = next(n for n in range(1, 12_000) if upper_rate(0, n, confidence=0.95) < rate)
        assert (1 - rate) ** first < 0.05
        assert (1 - rate) ** (first - 1) >= 0.05 - 1e-9
