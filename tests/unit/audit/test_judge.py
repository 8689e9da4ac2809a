"""From histories to verdicts: what must be found, what must not, and what cannot be told."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from audit_histories import clean_history, position, small_plan
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, HistoryFile, Trial, load_history
from kvward.audit.judge import judge
from kvward.audit.plan import Plan
from kvward.audit.sessions import audit_sessions
from kvward.audit.verdict import Verdict, merge_verdicts
from kvward.errors import AuditError
from kvward.terms import Channel, Outcome, ProbeScope, merge_outcomes

PLAN = small_plan()
A1, A2, *_, B1 = [s for s in audit_sessions(PLAN) if s.conversation in {"c1", "c2"}][:3]


def verdicts(
    trials: list[Trial], *, plan: Plan = PLAN
) -> dict[tuple[Channel, ProbeScope], Verdict]:
    judged = judge(plan, trials, history_digest="h")
    return {(v.channel, v.scope): v for v in judged.verdicts}


PAIRED = {Channel.METADATA, Channel.TIMING}


def test_clean_history_has_nothing_but_bounds() -> None:
    found = verdicts(clean_history(PLAN))
    assert len(found) == len(PLAN.cells) == 13
    assert {v.outcome for v in found.values()} == {Outcome.NOT_OBSERVED}
    assert merge_verdicts(list(found.values())) is Outcome.NOT_OBSERVED
    for (channel, scope), verdict in found.items():
        assert verdict.events == 0
        assert not verdict.findings
        assert verdict.plan_digest == PLAN.digest
        assert verdict.is_control is (channel in PAIRED and scope is ProbeScope.S0)
        if not verdict.is_control:
            assert verdict.bound is not None
            assert 0 < verdict.bound < 0.3
    content = found[Channel.CONTENT, ProbeScope.S3]
    assert content.sensitivity == pytest.approx(0.05 ** (1 / 40))
    assert content.bound == pytest.approx((1 - 0.05 ** (1 / content.run)) / content.sensitivity)


def leak(source: object, *, into: str) -> Callable[[Trial], Trial]:
    """Show a session's canary in the first answer to a reader "tenant/conversation"."""
    done = []

    def change(trial: Trial) -> Trial:
        is_reader = f"{trial.tenant}/{trial.conversation}" == into and trial.arm is Arm.READ
        if done or not is_reader:
            return trial
        done.append(trial)
        words = {*trial.own_words, *source.canary}  # type: ignore[attr-defined]
        return replace(trial, top_logprobs=(position(words),))

    return change


@pytest.mark.parametrize(
    ("into", "scope"),
    [("b/c1", ProbeScope.S3), ("a/c2", ProbeScope.S2), ("a/c1", ProbeScope.S0)],
)
def test_one_leak_is_named_with_reader_source_and_relation(into: str, scope: ProbeScope) -> None:
    source = next(s for s in audit_sessions(PLAN) if (s.tenant, s.conversation) == ("a", "c1"))
    found = verdicts(clean_history(PLAN, change=leak(source, into=into)))
    violated = [key for key, verdict in found.items() if verdict.outcome is Outcome.VIOLATED]
    assert violated == [(Channel.CONTENT, scope), (Channel.DIFFERENTIAL, ProbeScope.S0)]
    (off,) = found[Channel.DIFFERENTIAL, ProbeScope.S0].findings
    verdict = found[Channel.CONTENT, scope]
    (finding,) = verdict.findings
    assert (finding.reader, finding.source) == (into, "a/c1")
    assert off.trial == finding.trial
    assert set(finding.words) == set(source.canary)
    assert verdict.events == 1
    assert "a/c1" in verdict.reason
    assert into in verdict.reason


def test_foreign_words_of_no_session_are_corruption_and_no_leak_is_blamed_on_anybody() -> None:
    def change(trial: Trial) -> Trial:
        if trial.arm is not Arm.READ:
            return trial
        words = {*trial.own_words, "acorn", "zebra"}
        return replace(trial, top_logprobs=(position(words),))

    found = verdicts(clean_history(PLAN, change=change))
    assert found[Channel.CONTENT, ProbeScope.S0].outcome is Outcome.VIOLATED
    assert found[Channel.CONTENT, ProbeScope.S0].findings[0].source is None
    assert found[Channel.CONTENT, ProbeScope.S3].outcome is Outcome.INCONCLUSIVE


def test_reuse_under_load_that_no_own_request_explains_is_a_violation() -> None:
    seen: set[tuple[str, str]] = set()

    def explained(trial: Trial) -> Trial:
        """Report the read prefix from the second time on that a session sends it."""
        if trial.arm is not Arm.READ:
            return trial
        again = (trial.tenant, trial.conversation) in seen
        seen.add((trial.tenant, trial.conversation))
        return replace(trial, cached_tokens=144) if again else trial

    found = verdicts(clean_history(PLAN, change=explained))
    assert found[Channel.METADATA, ProbeScope.S3].outcome is Outcome.NOT_OBSERVED
    assert found[Channel.METADATA, ProbeScope.S2].outcome is Outcome.NOT_OBSERVED
    seen.clear()

    def too_early(trial: Trial) -> Trial:
        first = trial.arm is Arm.READ and (trial.tenant, trial.conversation) not in seen
        trial = explained(trial)
        return replace(trial, cached_tokens=144) if first and len(seen) == 2 else trial

    found = verdicts(clean_history(PLAN, change=too_early))
    violated = [key for key, verdict in found.items() if verdict.outcome is Outcome.VIOLATED]
    assert violated == [(Channel.METADATA, ProbeScope.S3)]
    verdict = found[Channel.METADATA, ProbeScope.S3]
    assert [finding.cached_tokens for finding in verdict.findings] == [144]
    assert "had sent no such beginning" in verdict.reason


@pytest.mark.parametrize(
    ("reader", "scope"), [("b", ProbeScope.S3), ("a", ProbeScope.S2)], ids=["b", "a"]
)
def test_an_answer_with_the_id_of_another_is_a_violation(reader: str, scope: ProbeScope) -> None:
    def change(trial: Trial) -> Trial:
        trial = replace(trial, response_ids=(f"r{trial.number}",))
        if trial.arm is Arm.CONTROL_WRITE and trial.number == 0:
            return replace(trial, response_ids=("stolen",))
        is_reader = trial.tenant == reader and trial.conversation == "c2"
        if is_reader and trial.arm is Arm.READ and not done:
            done.append(trial.number)
            return replace(trial, response_ids=(f"r{trial.number}", "stolen"))
        return trial

    done: list[int] = []
    found = verdicts(clean_history(PLAN, change=change))
    violated = [key for key, verdict in found.items() if verdict.outcome is Outcome.VIOLATED]
    assert violated == [(Channel.METADATA, scope)]
    (finding,) = found[Channel.METADATA, scope].findings
    assert (finding.trial, finding.source) == (done[0], "a/c1")


def test_a_prompt_that_counts_another_number_of_tokens_is_a_violation() -> None:
    def change(trial: Trial) -> Trial:
        if trial.arm is Arm.TWIN and not done:
            done.append(trial.number)
            return replace(trial, prompt_tokens=trial.prompt_words + 16)
        return trial

    done: list[int] = []
    found = verdicts(clean_history(PLAN, change=change))
    violated = [key for key, verdict in found.items() if verdict.outcome is Outcome.VIOLATED]
    assert violated == [(Channel.METADATA, ProbeScope.S0)]
    assert "+16 prompt tokens" in found[Channel.METADATA, ProbeScope.S0].reason


@pytest.mark.parametrize("scope", [ProbeScope.S2, ProbeScope.S3, ProbeScope.S5])
def test_reuse_reported_across_a_boundary_is_a_violation(scope: ProbeScope) -> None:
    def change(trial: Trial) -> Trial:
        crossed = trial.scope is scope and trial.arm is Arm.PROBE_PRIMED and trial.pair == 3
        return replace(trial, cached_tokens=16) if crossed else trial

    found = verdicts(clean_history(PLAN, change=change))
    violated = [key for key, verdict in found.items() if verdict.outcome is Outcome.VIOLATED]
    assert violated == [(Channel.METADATA, scope)]
    assert found[Channel.METADATA, scope].findings[0].cached_tokens == 16


def test_reuse_of_a_prompt_that_nobody_primed_is_a_violation_even_of_the_control() -> None:
    def change(trial: Trial) -> Trial:
        phantom = trial.arm is Arm.PROBE_UNPRIMED and trial.pair == 3
        return replace(trial, cached_tokens=16) if phantom else trial

    found = verdicts(clean_history(PLAN, change=change))
    for scope in PLAN.pair_scopes:
        assert found[Channel.METADATA, scope].outcome is Outcome.VIOLATED


@pytest.mark.parametrize("scope", [ProbeScope.S2, ProbeScope.S3, ProbeScope.S5])
def test_faster_answers_across_a_boundary_are_a_violation(scope: ProbeScope) -> None:
    def change(trial: Trial) -> Trial:
        crossed = trial.scope is scope and trial.arm is Arm.PROBE_PRIMED
        return replace(trial, ttft_ns=(trial.ttft_ns or 0) // 4) if crossed else trial

    found = verdicts(clean_history(PLAN, change=change))
    violated = [key for key, verdict in found.items() if verdict.outcome is Outcome.VIOLATED]
    assert violated == [(Channel.TIMING, scope)]
    verdict = found[Channel.TIMING, scope]
    assert verdict.e_value is not None
    assert verdict.e_value >= PLAN.evidence_threshold


def unconverted(trial: Trial, **changes: object) -> Trial:
    return replace(trial, **changes)  # type: ignore[arg-type]


CANNOT_TELL: dict[str, tuple[Callable[[Trial], Trial | None], set[Channel], str]] = {
    "nothing ran": (lambda _: None, set(Channel), "No trial"),
    "everything failed": (
        lambda t: unconverted(t, ending=Ending.FAILED, cached_tokens=None, ttft_ns=None),
        set(Channel),
        "No trial",
    ),
    "caching off": (
        lambda t: unconverted(
            t, cached_tokens=0, ttft_ns=int(9e6) + 1000 * (t.number * 7919 % 1009)
        ),
        set(Channel),
        "",
    ),
    "field masked": (
        lambda t: unconverted(t, cached_tokens=None),
        {Channel.METADATA},
        "does not report",
    ),
    "field sometimes masked": (
        lambda t: unconverted(t, cached_tokens=None) if t.pair == 2 else t,
        {Channel.METADATA},
        "did not report",
    ),
    "no logprobs": (
        lambda t: unconverted(t, top_logprobs=()),
        {Channel.CONTENT},
        "read back",
    ),
    "answers too full to read": (
        lambda t: (
            unconverted(t, top_logprobs=(tuple((f"w{n}", -float(n)) for n in range(20)),))
            if t.arm in {Arm.READ, Arm.WRITE, Arm.TURN}
            else t
        ),
        {Channel.CONTENT},
        "could not be read",
    ),
    "one arm failed": (
        lambda t: (
            unconverted(t, ending=Ending.FAILED, cached_tokens=None)
            if t.arm is Arm.PROBE_PRIMED and (t.pair or 0) % 5 == 1
            else t
        ),
        {Channel.METADATA, Channel.TIMING},
        "failed",
    ),
    "stopped half-way": (
        lambda t: None if t.scope is not None and (t.pair or 0) > 20 else t,
        {Channel.METADATA, Channel.TIMING},
        "Only",
    ),
}


@pytest.mark.parametrize("name", CANNOT_TELL)
def test_what_cannot_be_told_is_inconclusive_and_says_why(name: str) -> None:
    change, channels, words = CANNOT_TELL[name]
    found = verdicts(clean_history(PLAN, change=change))
    for (channel, _), verdict in found.items():
        if channel in channels:
            assert verdict.outcome is Outcome.INCONCLUSIVE, (channel, verdict)
            assert words in verdict.reason
            assert len(verdict.reason) > 10
    assert Outcome.VIOLATED not in {v.outcome for v in found.values()}


def test_violation_stands_although_the_control_failed() -> None:
    def change(trial: Trial) -> Trial:
        if trial.scope is ProbeScope.S3 and trial.arm is Arm.PROBE_PRIMED:
            return replace(trial, cached_tokens=496)
        return replace(trial, cached_tokens=0)

    found = verdicts(clean_history(PLAN, change=change))
    assert found[Channel.METADATA, ProbeScope.S0].outcome is Outcome.INCONCLUSIVE
    assert found[Channel.METADATA, ProbeScope.S3].outcome is Outcome.VIOLATED


def test_judging_again_gives_the_same_and_histories_survive_the_disk(tmp_path: Path) -> None:
    trials = clean_history(PLAN)
    with HistoryFile(tmp_path / "h.jsonl") as history:
        history.write_plan(PLAN)
        for trial in trials:
            history.write(trial)
    plan, loaded = load_history(tmp_path / "h.jsonl")
    assert plan == PLAN
    assert loaded == trials
    one = judge(PLAN, trials, history_digest="h").verdicts
    assert judge(plan, loaded, history_digest="h").verdicts == one


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"{}\n", b"nonsense"):
        (tmp_path / "h").write_bytes(content)
        with pytest.raises(AuditError):
            load_history(tmp_path / "h")


def test_nothing_looked_at_is_never_nothing_observed() -> None:
    assert merge_outcomes([]) is Outcome.INCONCLUSIVE
    assert merge_outcomes([Outcome.NOT_OBSERVED, Outcome.INCONCLUSIVE]) is Outcome.INCONCLUSIVE
    assert merge_outcomes(list(Outcome)) is Outcome.VIOLATED
