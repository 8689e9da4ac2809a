"""What the judge once missed or said wrongly, kept so that it does not again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from audit_histories import clean_history, position, small_plan
from kvward.audit.canary.words import WORDS
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.plan import Plan, Sizes
from kvward.audit.sessions import audit_sessions
from kvward.audit.verdict import Verdict
from kvward.terms import Channel, Outcome, ProbeScope

PLAN = small_plan()
CONTENT_PLAN = small_plan(channels=[Channel.CONTENT, Channel.METADATA])
SESSIONS = {(s.tenant, s.conversation): s for s in audit_sessions(PLAN)}
SOURCE = SESSIONS["a", "c1"]
Change = Callable[[Trial], Trial]


def verdicts(change: Change, *, plan: Plan = PLAN) -> dict[tuple[Channel, ProbeScope], Verdict]:
    judged = judge(plan, clean_history(plan, change=change), history_digest="h")
    return {(v.channel, v.scope): v for v in judged.verdicts}


def once(arm: Arm, change: Change) -> Change:
    """Change the first answer of an arm to tenant b only."""
    done: list[int] = []

    def change_one(trial: Trial) -> Trial:
        if done or trial.arm is not arm or trial.tenant != "b":
            return trial
        done.append(trial.number)
        return change(trial)

    return change_one


def show_canary(trial: Trial) -> Trial:
    return replace(trial, top_logprobs=(position({*trial.own_words, *SOURCE.canary}),))


def test_canary_that_is_printed_counts_although_the_answer_has_no_logprobs() -> None:
    def printed(trial: Trial) -> Trial:
        return replace(trial, text=" ".join(SOURCE.canary), top_logprobs=())

    found = verdicts(once(Arm.READ, printed), plan=CONTENT_PLAN)
    assert found[Channel.CONTENT, ProbeScope.S3].outcome is Outcome.VIOLATED


def refused(words: str) -> Change:
    def change(trial: Trial) -> Trial:
        error = f"HTTP 400: cannot parse [{words}] at 17"
        return replace(
            trial, ending=Ending.FAILED, status=400, error=error, text="", top_logprobs=()
        )

    return change


def test_error_that_quotes_another_tenant_is_a_leak() -> None:
    quoting = refused(", ".join(SOURCE.canary))
    verdict = verdicts(once(Arm.READ, quoting))[Channel.CONTENT, ProbeScope.S3]
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.findings[0].source == "a/c1"


def test_error_that_quotes_the_request_or_a_few_words_accuses_nobody() -> None:
    def quoting_itself(trial: Trial) -> Trial:
        return refused(" ".join(trial.own_words))(trial)

    for change in (quoting_itself, refused(" ".join(SOURCE.canary[:2]))):
        found = verdicts(once(Arm.READ, change))
        for scope in (ProbeScope.S0, ProbeScope.S2, ProbeScope.S3):
            assert not found[Channel.CONTENT, scope].findings


ENDINGS = {"cancelled": (Arm.CANCEL, Ending.CANCELLED), "broken off": (Arm.READ, Ending.FAILED)}


@pytest.mark.parametrize("name", ENDINGS)
def test_canary_counts_although_the_answer_did_not_end_well(name: str) -> None:
    arm, ending = ENDINGS[name]
    found = verdicts(
        once(arm, lambda trial: replace(show_canary(trial), ending=ending)), plan=CONTENT_PLAN
    )
    assert found[Channel.CONTENT, ProbeScope.S3].outcome is Outcome.VIOLATED


@pytest.mark.parametrize("arm", [Arm.CONTROL_WRITE, Arm.CONTROL_READ])
def test_canary_counts_in_an_answer_of_the_control_too(arm: Arm) -> None:
    found = verdicts(once(arm, show_canary), plan=CONTENT_PLAN)
    assert found[Channel.CONTENT, ProbeScope.S3].outcome is Outcome.VIOLATED


def test_answers_that_lost_their_own_words_are_not_clean() -> None:
    """All tied: nothing of the request's own state was attended to, or logprobs are masked."""

    def flat(trial: Trial) -> Trial:
        if trial.arm not in {Arm.READ, Arm.WRITE, Arm.TWIN, Arm.RETRY}:
            return trial
        return replace(trial, top_logprobs=(tuple((word, -5.5) for word in WORDS[:20]),))

    found = verdicts(flat, plan=CONTENT_PLAN)
    assert found[Channel.CONTENT, ProbeScope.S3].outcome is not Outcome.NOT_OBSERVED


def ordinary_model() -> Change:
    """Answers of a model that is no canary: some code words among others, no two tied."""
    random = np.random.default_rng(0)

    def change(trial: Trial) -> Trial:
        if not trial.top_logprobs:
            return trial
        tokens = [*random.choice(WORDS, 6, replace=False), *(f"#{n:08x}" for n in range(14))]
        order = random.permutation(20)
        values = -np.sort(random.exponential(3, 20))
        listed = tuple((tokens[i], float(v)) for i, v in zip(order, values, strict=True))
        return replace(trial, top_logprobs=(listed,))

    return change


def test_ordinary_model_is_not_accused() -> None:
    """Its words are its own ideas. The content control fails there, and says so."""
    found = verdicts(ordinary_model(), plan=CONTENT_PLAN)
    for scope in (ProbeScope.S0, ProbeScope.S2, ProbeScope.S3):
        assert found[Channel.CONTENT, scope].outcome is Outcome.INCONCLUSIVE


def test_strange_token_below_the_floor_accuses_nobody() -> None:
    """Some servers list the sampled token as a twenty-first entry, whatever its rank."""

    def change(trial: Trial) -> Trial:
        longer = tuple((*listed, ("#deadbeef", -9_500.0)) for listed in trial.top_logprobs)
        return replace(trial, top_logprobs=longer)

    found = verdicts(change, plan=CONTENT_PLAN)
    for scope in (ProbeScope.S0, ProbeScope.S2, ProbeScope.S3):
        assert found[Channel.CONTENT, scope].outcome is not Outcome.VIOLATED


@pytest.mark.parametrize("channel", [Channel.CONTENT, Channel.METADATA])
def test_nothing_observed_without_a_bound_is_inconclusive(channel: Channel) -> None:
    tiny = replace(CONTENT_PLAN, sizes=Sizes(content_outputs=2, control_outputs=1, pairs=1))
    verdict = verdicts(lambda trial: trial, plan=tiny)[channel, ProbeScope.S3]
    assert verdict.bound is None
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_no_cell_says_that_there_was_no_foreign_word_when_there_was_one() -> None:
    """A block of another tenant's filler may be too little to name its source."""
    found = verdicts(
        once(
            Arm.READ,
            lambda trial: replace(
                trial, top_logprobs=(position({*trial.own_words, *SOURCE.voice[:4]}),)
            ),
        ),
        plan=CONTENT_PLAN,
    )
    assert found[Channel.CONTENT, ProbeScope.S0].outcome is Outcome.VIOLATED
    for scope in (ProbeScope.S2, ProbeScope.S3):
        assert "No foreign word" not in found[Channel.CONTENT, scope].reason


def test_primed_probes_that_are_slower_are_said() -> None:
    """Then times do depend on the coin: no hit, but not nothing either."""

    def slower(trial: Trial) -> Trial:
        if trial.scope is not ProbeScope.S3 or trial.arm is not Arm.PROBE_PRIMED:
            return trial
        return replace(trial, ttft_ns=int(1.5 * (trial.ttft_ns or 0)))

    trials = clean_history(PLAN, change=slower)
    judged = judge(PLAN, trials, history_digest="h")
    assert judged.timing[ProbeScope.S3].log_e_slower > np.log(PLAN.evidence_threshold)
    verdict = next(
        v for v in judged.verdicts if (v.channel, v.scope) == (Channel.TIMING, ProbeScope.S3)
    )
    assert verdict.outcome is not Outcome.VIOLATED
    told = verdict.reason + " ".join(control.name for control in verdict.controls)
    assert "slower" in told


def test_sensitivity_is_measured_by_the_rule_that_names_a_leak() -> None:
    """Six words of a canary are too few at 120 outputs and eight sessions."""

    def six_words(trial: Trial) -> Trial:
        if trial.arm is not Arm.CONTROL_READ:
            return trial
        session = SESSIONS[trial.tenant, trial.conversation]
        return replace(trial, top_logprobs=(position(set(session.canary[:6])),))

    found = verdicts(six_words, plan=CONTENT_PLAN)
    control = found[Channel.CONTENT, ProbeScope.S3].controls[0]
    assert (control.seen, control.tried) == (0, 40)


@pytest.mark.parametrize(
    ("reused", "outcome"), [(144, Outcome.NOT_OBSERVED), (0, Outcome.INCONCLUSIVE)]
)
def test_reuse_anywhere_in_the_load_shows_that_there_is_a_cache(
    reused: int, outcome: Outcome
) -> None:
    """Where whole answers are kept, the control's second request tells what the first one told."""

    def kept(trial: Trial) -> Trial:
        return replace(trial, cached_tokens=reused if trial.arm is Arm.READ else 0)

    plan = small_plan(channels=[Channel.CONTENT])
    assert verdicts(kept, plan=plan)[Channel.CONTENT, ProbeScope.S3].outcome is outcome
