"""Reuse that every two prompts share is nobody's state; all beyond it is somebody's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audit_histories import clean_history, small_plan
from kvward.audit.evidence.common import CommonTokens
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.terms import Channel, Outcome, ProbeScope

PLAN = small_plan(channels=[Channel.METADATA])
PROBES = (Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED)


def outcomes(trials: list[Trial]) -> dict[ProbeScope, Outcome]:
    return {v.scope: v.outcome for v in judge(PLAN, trials, history_digest="h").verdicts}


def with_order(trials: list[Trial]) -> list[Trial]:
    """Say which probe of a pair was the first: the history of the tests does not."""
    return [replace(t, first=(t.arm is Arm.PROBE_PRIMED)) if t.arm in PROBES else t for t in trials]


ALL_WELL = dict.fromkeys(
    (ProbeScope.S0, ProbeScope.S2, ProbeScope.S3, ProbeScope.S5), Outcome.NOT_OBSERVED
)


@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_first_words_in_common_by_chance_accuse_nobody(tokens: int) -> None:
    def lucky(trial: Trial) -> Trial:
        by_chance = trial.arm in PROBES and trial.number % 17 == 0 and not trial.cached_tokens
        return replace(trial, cached_tokens=tokens) if by_chance else trial

    trials = clean_history(PLAN, change=lucky)
    assert any(trial.cached_tokens == tokens for trial in trials)
    assert outcomes(trials) == ALL_WELL


def behind_template(trial: Trial) -> Trial:
    """Put 32 tokens of a template before each prompt, kept from the first probe of each pair on."""
    known = 32 if trial.arm is Arm.PROBE_UNPRIMED else 0
    cached = None if trial.cached_tokens is None else max(trial.cached_tokens, known)
    return replace(trial, prompt_tokens=544, cached_tokens=cached)


def test_template_in_common_accuses_nobody() -> None:
    assert outcomes(with_order(clean_history(PLAN, change=behind_template))) == ALL_WELL


def test_one_block_beyond_the_template_is_a_violation() -> None:
    def leaking(trial: Trial) -> Trial:
        trial = behind_template(trial)
        leak = trial.arm is Arm.PROBE_PRIMED and trial.scope is ProbeScope.S3 and trial.pair == 7
        return replace(trial, cached_tokens=48) if leak else trial

    trials = with_order(clean_history(PLAN, change=leaking))
    assert outcomes(trials) == ALL_WELL | {ProbeScope.S3: Outcome.VIOLATED}


def test_most_of_every_fresh_prompt_is_no_template() -> None:
    def generous(trial: Trial) -> Trial:
        return replace(trial, cached_tokens=496) if trial.arm in PROBES else trial

    found = outcomes(with_order(clean_history(PLAN, change=generous)))
    assert set(found.values()) == {Outcome.VIOLATED}


def test_words_of_several_tokens_are_counted_as_such() -> None:
    trials = [replace(t, prompt_tokens=3 * t.prompt_words) for t in clean_history(PLAN)]
    common = CommonTokens(trials)
    probe = next(trial for trial in trials if trial.arm is Arm.PROBE_PRIMED)
    assert common.of(probe) == 15
    assert CommonTokens([]).of(probe) == 0


def test_reuse_of_every_fresh_prompt_is_no_template_where_nothing_stands_around_a_prompt() -> None:
    def told(trial: Trial) -> Trial:
        return replace(trial, cached_tokens=96) if trial.arm is Arm.PROBE_UNPRIMED else trial

    found = outcomes(with_order(clean_history(PLAN, change=told)))
    assert set(found.values()) == {Outcome.VIOLATED}
