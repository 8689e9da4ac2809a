"""What the ledger's room needs to know of an audit: composed from `audit`, as plain data.

Nothing here reaches a target: `kvward verify` runs without any network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvward.audit.description import target_digest
from kvward.audit.history import Trial
from kvward.audit.rejudge import rejudge
from kvward.audit.verdict import Verdict
from kvward.errors import AuditError, BundleError
from kvward.ledger.bundle.audit_part import Recomputed
from kvward.ledger.document import sha256_hex
from kvward.ledger.entry import PPB
from kvward.ledger.statement import CellVerdict
from kvward.terms import ClauseId


def recompute_audit(history: bytes, report: bytes) -> Recomputed:
    """Judge a history again and compare the report with what comes of it.

    Args:
        history, report: As the audit wrote them. [untrusted]
    Raises:
        BundleError: They are none, or none that this version can judge.
    """
    try:
        found = rejudge(history, report, history_digest=sha256_hex(history))
    except AuditError as exc:
        raise BundleError(exc.message, hint=exc.hint) from exc
    plan = found.report.plan
    return Recomputed(
        plan_digest=plan.digest,
        target_digest=target_digest(plan),
        tool_version=plan.tool_version,
        cells=tuple(cell_verdict(verdict) for verdict in found.report.verdicts),
        started_unix_s=found.report.started_unix_s,
        span_ns=_span_ns(found.trials),
        differences=found.differences,
    )


def cell_verdict(verdict: Verdict) -> CellVerdict:
    """Return what a log keeps of a verdict."""
    return CellVerdict(
        channel=verdict.channel,
        scope=verdict.scope,
        outcome=verdict.outcome,
        tier=verdict.tier,
        clause=ClauseId(verdict.clause) if verdict.clause in set(ClauseId) else None,
        bound_ppb=bound_ppb(verdict.bound),
    )


def bound_ppb(bound: float | None) -> int | None:
    """Return a bound in parts per billion, rounded up; None where there is none."""
    if bound is None or not math.isfinite(bound):
        return None
    return min(PPB, max(0, math.ceil(bound * PPB)))


def _span_ns(trials: Sequence[Trial]) -> int:
    if not trials:
        return 0
    ended = max(trial.start_ns + trial.total_ns for trial in trials)
    return max(0, ended - min(trial.start_ns for trial in trials))
