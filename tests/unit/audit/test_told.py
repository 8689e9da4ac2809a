"""What tells of reuse besides the usage: a router's count, a header of a cache of answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audit_histories import clean_history, small_plan
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.target.wire import read_cache_headers
from kvward.terms import Channel, Outcome, ProbeScope

PLAN = small_plan(channels=[Channel.METADATA])
PROBES = (Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED)


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"x-cache": "HIT from edge-1"}, True),
        ({"x-cache": "miss"}, False),
        ({"cf-cache-status": "DYNAMIC"}, False),
        ({"x-litellm-cache-hit": "True"}, True),
        ({"x-cache": "miss", "x-semantic-cache": "hit"}, True),
        ({"x-cache": "what"}, None),
        ({"age": "3"}, None),
        ({}, None),
    ],
)
def test_headers_that_caches_are_known_to_send(headers: dict[str, str], told: bool | None) -> None:
    assert read_cache_headers(headers) is told


def outcomes(trials: list[Trial]) -> dict[ProbeScope, Outcome]:
    return {v.scope: v.outcome for v in judge(PLAN, trials, history_digest="h").verdicts}


def kept_answers(trial: Trial) -> Trial:
    """A cache of whole answers: usage repeats what it was, and a header says that it is old."""
    own = trial.scope is ProbeScope.S0 and trial.arm is Arm.PROBE_PRIMED
    hit = own if trial.arm in PROBES else None
    return replace(trial, cached_tokens=0, cache_hit=hit)


def test_header_is_enough_for_the_control_and_for_a_violation() -> None:
    clean = clean_history(PLAN, change=kept_answers)
    assert set(outcomes(clean).values()) == {Outcome.NOT_OBSERVED}

    def shared(trial: Trial) -> Trial:
        trial = kept_answers(trial)
        other = trial.scope is ProbeScope.S3 and trial.arm is Arm.PROBE_PRIMED
        return replace(trial, cache_hit=True) if other else trial

    found = outcomes(clean_history(PLAN, change=shared))
    assert found[ProbeScope.S3] is Outcome.VIOLATED
    assert found[ProbeScope.S5] is Outcome.NOT_OBSERVED


def test_router_that_knows_anothers_prompt_tells_of_it() -> None:
    def routed(trial: Trial) -> Trial:
        known = trial.scope is ProbeScope.S3 and trial.arm is Arm.PROBE_PRIMED
        return replace(trial, matched_tokens=496 if known else 0)

    found = outcomes(clean_history(PLAN, change=routed))
    assert found[ProbeScope.S3] is Outcome.VIOLATED
    assert found[ProbeScope.S0] is Outcome.NOT_OBSERVED
