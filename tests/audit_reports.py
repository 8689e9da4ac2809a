"""Reports made of made-up histories, for tests of what reports are turned into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from audit_histories import clean_history, position, small_plan
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.plan import Plan
from kvward.audit.report.model import AuditReport, make_report
from kvward.audit.sessions import audit_sessions

PLAN = small_plan()
HOSTILE = (
    "</script><img src=x onerror=alert(1)> $\\frac{1}{0}$ $x | a|b `c` *d* [e](http://f.example) "
    "]]> @someone \x1b[31m\x07\x00\u202e\r\nkvward_audit_outcome 0\n# EOF\n\"q'& www.g.example"
)
"""What a target or an operator could choose as a name, with something for every format."""


def leaking(trial: Trial) -> Trial:
    """Let tenant b read words of a's first session, and be told of a's cached tokens."""
    source = audit_sessions(PLAN)[0]
    if trial.tenant == "b" and trial.arm is Arm.READ:
        words = {*trial.own_words, *source.canary}
        return replace(trial, top_logprobs=(position(words),))
    if trial.tenant == "b" and trial.arm is Arm.PROBE_PRIMED and trial.scope == "S3":
        return replace(trial, cached_tokens=496)
    return trial


def report_of(
    trials: Sequence[Trial], *, plan: Plan = PLAN, title: str = "Test <b>"
) -> AuditReport:
    return make_report(
        title=title,
        note="",
        plan=plan,
        judgement=judge(plan, trials, history_digest="f" * 64),
        trials=trials,
        started_unix_s=0,
        duration_s=1.5,
    )


@cache
def clean_report() -> AuditReport:
    return report_of(clean_history(PLAN))


@cache
def leaking_report() -> AuditReport:
    return report_of(clean_history(PLAN, change=leaking))


@cache
def empty_report() -> AuditReport:
    return report_of([])


@cache
def hostile_report() -> AuditReport:
    """Every text that somebody else chose is hostile: model, address, tenants, reasons, words."""
    subject = leaking_report()
    tenants = (HOSTILE, f"{HOSTILE}2")
    plan = replace(
        PLAN, model=HOSTILE, url=f"http://127.0.0.1/{HOSTILE}", tenants=tenants,
        preset=HOSTILE, preset_reason=HOSTILE,
    )  # fmt: skip
    verdicts = tuple(
        replace(
            verdict,
            reason=f"{verdict.reason} {HOSTILE}",
            findings=tuple(
                replace(f, reader=f"{HOSTILE}/c1", source=f"{HOSTILE}2/c1", words=(HOSTILE,))
                for f in verdict.findings
            ),
        )
        for verdict in subject.verdicts
    )
    judgement = replace(subject.judgement, verdicts=verdicts)
    return replace(subject, plan=plan, judgement=judgement, title=HOSTILE, note=HOSTILE)


REPORTS = {
    "clean": clean_report,
    "leaking": leaking_report,
    "empty": empty_report,
    "hostile": hostile_report,
}
