"""The demo's own judgement: it must complain when it did not show what it should."""

from dataclasses import replace

from audit_histories import clean_history, position, small_plan
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.report.model import AuditReport, make_report
from kvward.audit.sessions import audit_sessions
from kvward.cli.demo import demo_complaints
from kvward.terms import ProbeScope

PLAN = small_plan()
SOURCE = audit_sessions(PLAN)[0]


def report(trials: list[Trial]) -> AuditReport:
    return make_report(
        title="t",
        note="",
        plan=PLAN,
        judgement=judge(PLAN, trials, history_digest="h"),
        trials=trials,
        started_unix_s=0,
        duration_s=1,
    )


def leaking(trial: Trial) -> Trial:
    if trial.tenant == "b" and trial.arm is Arm.READ:
        words = {*trial.own_words, *SOURCE.canary}
        return replace(trial, top_logprobs=(position(words),))
    if trial.scope is ProbeScope.S3 and trial.arm is Arm.PROBE_PRIMED:
        return replace(trial, cached_tokens=496)
    return trial


CLEAN = report(clean_history(PLAN))
LEAKING = report(clean_history(PLAN, change=leaking))


def test_leak_caught_and_ward_quiet_is_what_it_should_show() -> None:
    assert demo_complaints(leaking=LEAKING, warded=CLEAN) == []


def test_leak_that_was_missed_is_a_complaint() -> None:
    complaints = demo_complaints(leaking=CLEAN, warded=CLEAN)
    assert len(complaints) == 2
    assert "not caught by content" in complaints[0]


def test_ward_that_was_flagged_is_a_complaint() -> None:
    complaints = demo_complaints(leaking=LEAKING, warded=LEAKING)
    assert any("content S3" in complaint for complaint in complaints)


def test_ward_that_was_not_tested_is_a_complaint() -> None:
    complaints = demo_complaints(leaking=LEAKING, warded=report([]))
    assert any("INCONCLUSIVE in content" in complaint for complaint in complaints)
    assert not any("timing" in complaint for complaint in complaints)
