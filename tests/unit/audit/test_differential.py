"""Answers against the reference: what must be seen, what must not, what cannot be told."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from audit_histories import answer, clean_history, small_plan
from kvward.audit.canary.reference import CanaryReference
from kvward.audit.canary.words import WORDS
from kvward.audit.detectors.differential import choose_margin, read_deviation
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.prompts import repeat_prompt, write_probe_prompt
from kvward.audit.sessions import audit_sessions
from kvward.audit.verdict import Verdict
from kvward.errors import ConfigError
from kvward.terms import Channel, Outcome

REFERENCE = CanaryReference()
PROMPT = WORDS[:6] * 20
PLAN = small_plan(channels=[Channel.DIFFERENTIAL], pairs=4)


def off(positions: tuple[tuple[tuple[str, float], ...], ...], text: str = "") -> float | None:
    return read_deviation(positions, text, prompt=PROMPT, reference=REFERENCE).nats


def cell(trials: list[Trial]) -> Verdict:
    (verdict,) = judge(PLAN, trials, history_digest="h").verdicts
    return verdict


def test_right_answers_are_right_at_every_position() -> None:
    text = " ".join(WORDS[3:6])
    positions = tuple(answer((*PROMPT, *WORDS[3 : 3 + n])) for n in range(3))
    nats = off(positions, text)
    assert nats is not None
    assert nats <= 0
    wrong = (*positions[:2], answer((*PROMPT, *WORDS[3:5], WORDS[200])))
    found = read_deviation(wrong, text, prompt=PROMPT, reference=REFERENCE)
    assert found.nats is not None
    assert found.nats > 1
    assert found.position == 2


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ((), ""),
        (((),), ""),
        ((answer(PROMPT), answer(PROMPT)), ""),
        ((answer(PROMPT), answer(PROMPT)), "#1234abcd"),
        (((("#1234abcd", -1.0),),), ""),
    ],
)
def test_what_cannot_be_compared_says_so(
    positions: tuple[tuple[tuple[str, float], ...], ...], text: str
) -> None:
    assert off(positions, text) is None


def test_not_a_number_is_a_deviation() -> None:
    broken = tuple((word, math.nan) for word, _ in answer(PROMPT))
    nats = off((broken,))
    assert nats is not None
    assert not nats <= 0


def test_margin_follows_what_requests_alone_show() -> None:
    assert choose_margin([0.0] * 20) == 0.05
    assert choose_margin([0.1] * 19 + [50.0]) == pytest.approx(0.4)
    assert choose_margin([]) == math.inf


def test_prompts_are_made_again_from_their_recipes() -> None:
    for trial in clean_history(PLAN)[:60]:
        session = next(
            s
            for s in audit_sessions(PLAN)
            if (s.tenant, s.conversation) == (trial.tenant, trial.conversation)
        )
        prompt = repeat_prompt(PLAN.seed, trial.prompt, session=session)
        assert prompt.recipe == trial.prompt
        assert len(prompt.words) == trial.prompt_words
        assert tuple(sorted(prompt.own_words)) == trial.own_words
    for recipe in ("", "canary:x/y:1:2", "probe:x:n", "canary:a/c1:1:2:3", "voice:a/c1:1:x:3"):
        with pytest.raises(ConfigError):
            repeat_prompt(PLAN.seed, recipe, session=session)
    probe = write_probe_prompt(PLAN.seed, num_words=70, nonce="n:S3:4:1")
    assert repeat_prompt(PLAN.seed, probe.recipe, session=None) == probe


def test_one_answer_from_another_context_is_seen_and_a_wrong_share_is_enough() -> None:
    done: list[int] = []

    def change(trial: Trial) -> Trial:
        if done or trial.arm is not Arm.READ:
            return trial
        done.append(trial.number)
        session = next(
            s
            for s in audit_sessions(PLAN)
            if (s.tenant, s.conversation) == (trial.tenant, trial.conversation)
        )
        words = list(repeat_prompt(PLAN.seed, trial.prompt, session=session).words)
        words[16:32] = words[48:64]  # an own block in the place of another: no foreign word
        return replace(trial, top_logprobs=(answer(tuple(words)),))

    verdict = cell(clean_history(PLAN, change=change))
    assert verdict.outcome is Outcome.VIOLATED
    assert [finding.trial for finding in verdict.findings] == done


def test_another_model_or_precision_is_inconclusive_and_blames_nobody() -> None:
    def change(trial: Trial) -> Trial:
        position = tuple((word, value * 0.97) for word, value in trial.top_logprobs[0])
        return replace(trial, top_logprobs=(position,))

    history = clean_history(PLAN)
    wrong = [change(trial) if trial.top_logprobs else trial for trial in history]
    verdict = cell(wrong)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert not verdict.findings
    assert verdict.events == 0
    assert "float32" in verdict.reason


def test_clean_answers_bound_the_rate_by_a_sensitivity_that_was_worked_out() -> None:
    verdict = cell(clean_history(PLAN))
    assert verdict.outcome is Outcome.NOT_OBSERVED
    assert verdict.bound is not None
    assert verdict.sensitivity is not None
    assert 0.9 < verdict.sensitivity < 1
    assert verdict.controls[1].tried == 200


def test_the_figures_count_what_was_read() -> None:
    """Answers of the control are compared like the others, so they are counted like them."""

    def change(trial: Trial) -> Trial:
        damaged = trial.arm is Arm.CONTROL_READ
        return replace(trial, top_logprobs=(answer(WORDS[:9] * 20),)) if damaged else trial

    verdict = cell(clean_history(PLAN, change=change))
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.events == PLAN.sizes.control_outputs == 40
    assert verdict.run == verdict.planned + 1 == 120 + 80 + 1  # the last step had two outputs
    assert f"40 of {verdict.run} answers" in verdict.reason
