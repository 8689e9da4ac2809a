"""Bounds on rates."""

from __future__ import annotations

from scipy.stats import beta


def upper_rate(num_events: int, num_trials: int, *, confidence: float) -> float:
    """Return the one-sided upper confidence limit of a rate (Clopper and Pearson).

    With no event it is 1 - (1 - confidence)^(1 / trials), which may be read at any time: while
    nothing is seen, that is a likelihood ratio, so stopping early costs nothing.

    Args:
        num_events: 0 <= events <= trials.
        num_trials: At least 0; no trial bounds nothing, and the limit is 1.
        confidence: Between 0 and 1, for example 0.95.
    """
    if num_trials == 0 or num_events == num_trials:
        return 1.0
    return float(beta.ppf(confidence, num_events + 1, num_trials - num_events))


def lower_rate(num_events: int, num_trials: int, *, confidence: float) -> float:
    """Return the one-sided lower confidence limit of a rate; 0 without events."""
    if num_events == 0:
        return 0.0
    return float(beta.ppf(1 - confidence, num_events, num_trials - num_events + 1))


def bound_with_sensitivity(visible_bound: float, sensitivity_limit: float) -> float:
    """Return the bound on the true rate, when only a share of events would have been seen.

    Args:
        visible_bound: Upper limit of the rate of visible events.
        sensitivity_limit: Lower limit of the share that is visible; 0 bounds nothing.
    """
    if sensitivity_limit <= 0:
        return 1.0
    return min(1.0, visible_bound / sensitivity_limit)
