"""The outcome of a churn run: any finding, else any control not met, else nothing observed."""

import json
from collections import Counter
from typing import Any

import pytest
from attacks.churn.judge import Finding, Kind
from attacks.churn.metrics import EngineState
from attacks.churn.report import Report

from kvward.terms import ExitCode, Outcome

COUNTS = {
    "requests": 20,
    "answered": 10,
    "answered:a": 5,
    "answered:b": 5,
    "cached_tokens": 64,
    "cancelled": 6,
    "cancelled_before_first_token": 3,
    "cancelled_after_first_token": 3,
    "repeats_compared": 2,
}


def state(*, usage: float | None = 0.0, preemptions: float | None = 0.0) -> EngineState:
    return EngineState(
        kv_usage_ratio=usage,
        running=0.0,
        waiting=0.0,
        preemptions=preemptions,
        is_counters_only=False,
    )


def report(**changes: Any) -> Report:
    counts = Counter(COUNTS | changes.pop("counts", {}))
    values: dict[str, Any] = {
        "errors": Counter(),
        "kinds": Counter(),
        "findings": [],
        "largest_difference_ratio": 0.1,
        "tenants": ("a", "b"),
        "duration_s": 1.0,
        "options": {"seed": 4},
    }
    return Report(counts=counts, **(values | changes))


def test_all_controls_met_and_nothing_found_is_clean() -> None:
    assert report().outcome is Outcome.NOT_OBSERVED
    assert report().exit_code is ExitCode.NOT_OBSERVED


@pytest.mark.parametrize(
    "count",
    [
        "answered",
        "answered:b",
        "cached_tokens",
        "cancelled_before_first_token",
        "cancelled_after_first_token",
        "repeats_compared",
    ],
)
def test_a_control_that_is_not_met_is_inconclusive(count: str) -> None:
    done = report(counts={count: 0})
    assert done.outcome is Outcome.INCONCLUSIVE
    assert done.exit_code == 2


def test_an_answer_that_could_not_be_read_is_inconclusive() -> None:
    assert report(counts={"unreadable": 1}).outcome is Outcome.INCONCLUSIVE


def test_a_finding_wins_over_controls() -> None:
    finding = Finding(kind=Kind.HANG, detail="timeout", request=3, tenant="a")
    done = report(kinds=Counter({Kind.HANG: 1}), findings=[finding], counts={"answered": 0})
    assert done.outcome is Outcome.VIOLATED
    assert done.exit_code == 1
    assert "request 3 of a" in done.render()


def test_metrics_that_were_asked_for_have_to_be_there_and_show_preemptions() -> None:
    before, after = state(preemptions=5), state(preemptions=7)
    good = report(wants_metrics=True, before=before, after=after)
    assert good.preemptions == 2
    assert good.outcome is Outcome.NOT_OBSERVED
    for bad in (None, before, state(usage=None, preemptions=7), state(preemptions=None)):
        done = report(wants_metrics=True, before=before, after=bad)
        assert done.outcome is Outcome.INCONCLUSIVE


def test_memory_that_was_asked_for_has_to_be_there() -> None:
    assert report(wants_memory=True).outcome is Outcome.INCONCLUSIVE


def test_the_result_has_the_same_keys_whatever_happened() -> None:
    plain = report().to_json(commit="c", version="v", python="p")
    full = report(
        wants_metrics=True, after=state(), findings=[Finding(kind=Kind.HANG, detail="")]
    ).to_json(commit=None, version="v", python="p")
    assert list(plain) == list(full)
    assert {"name", "commit", "seed", "counts", "controls", "rss", "findings", "outcome"} <= set(
        plain
    )
    assert plain["seed"] == 4
    assert json.loads(json.dumps(full))["outcome"] == "INCONCLUSIVE"
