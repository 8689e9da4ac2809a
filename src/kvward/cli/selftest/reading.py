"""From the report of one audit to what each channel said, and how soon."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from kvward.audit.evidence.pairs import timed_numbers
from kvward.audit.history import Arm, Trial
from kvward.audit.report import AuditReport
from kvward.audit.verdict import Verdict, merge_verdicts
from kvward.cli.selftest.matrix import Seen
from kvward.terms import Channel

_PROBES = (Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED)


def read_report(report: AuditReport, trials: Sequence[Trial]) -> tuple[Seen, ...]:
    """Return what each planned channel said, positive controls left out."""
    seen = []
    for channel in Channel:
        cells = [v for v in report.verdicts if v.channel is channel and not v.is_control]
        if not cells:
            continue
        outcome = merge_verdicts(cells)
        telling = [cell for cell in cells if cell.outcome is outcome]
        firsts = [_first_request(cell, report, trials) for cell in telling]
        seen.append(
            Seen(
                channel=channel,
                outcome=outcome,
                scopes=tuple(cell.scope for cell in telling),
                tier=report.plan.cache_tier,
                num_requests=len(trials),
                first_request=min((first for first in firsts if first is not None), default=None),
                events=telling[0].events,
                num_read=telling[0].run - telling[0].failed,
                sensitivity=telling[0].sensitivity,
                reason=telling[0].reason,
            )
        )
    return tuple(seen)


def _first_request(verdict: Verdict, report: AuditReport, trials: Sequence[Trial]) -> int | None:
    """Return with which request, from 1, a violation was complete."""
    if verdict.findings:
        return min(finding.trial for finding in verdict.findings) + 1
    if verdict.channel is not Channel.TIMING:
        return None
    threshold = log(report.plan.evidence_threshold)
    path = report.judgement.timing[verdict.scope].log_e_path
    crossing = next((step for step, log_e in enumerate(path) if log_e >= threshold), None)
    if crossing is None:
        return None
    # The path has one step for each pair whose two times can be compared.
    compared = timed_numbers(trials, verdict.scope)[crossing]
    return 1 + max(
        trial.number
        for trial in trials
        if trial.scope is verdict.scope and trial.pair == compared and trial.arm in _PROBES
    )
