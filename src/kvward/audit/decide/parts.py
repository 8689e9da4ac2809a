"""What all decisions have in common."""

from __future__ import annotations

from kvward.audit.verdict import Control, Finding, Stamp, Trials, Verdict
from kvward.terms import Channel, Outcome, ProbeScope

MAX_UNREADABLE_RATIO = 0.05
NO_REUSE = {
    None: "The target does not tell whether it reused anything, so nothing was put to test.",
    False: "No reuse was seen at all: caching may be off, so nothing was put to test.",
}
"""By whether reuse was seen: why an answer under load says nothing about it."""

_CLAUSES = {
    Channel.CONTENT: "scope",
    Channel.DIFFERENTIAL: "scope",
    Channel.METADATA: "metadata",
    Channel.TIMING: "scope",
}
_CLAUSE_OF_SCOPE = {ProbeScope.S5: "origin", ProbeScope.S8: "interference"}


def make_verdict(
    scope: ProbeScope,
    channel: Channel,
    trials: Trials,
    stamp: Stamp,
    *,
    outcome: Outcome,
    reason: str,
    events: int,
    bound: float | None,
    bound_kind: str,
    sensitivity: float | None,
    controls: tuple[Control, ...],
    findings: tuple[Finding, ...],
    is_control: bool = False,
    e_value: float | None = None,
    e_threshold: float | None = None,
) -> Verdict:
    """Put a verdict together from what was decided and what every verdict of the run carries."""
    return Verdict(
        clause=_CLAUSE_OF_SCOPE.get(scope, _CLAUSES[channel]),
        scope=scope,
        channel=channel,
        tier=stamp.cache_tier,
        is_control=is_control,
        outcome=outcome,
        planned=trials.planned,
        run=trials.run,
        failed=trials.failed,
        events=events,
        bound=bound,
        bound_kind=bound_kind if bound is not None else None,
        confidence=stamp.confidence,
        sensitivity=sensitivity,
        e_value=e_value,
        e_threshold=e_threshold,
        controls=controls,
        reason=reason,
        findings=findings,
        seed=stamp.seed,
        plan_digest=stamp.plan_digest,
        history_digest=stamp.history_digest,
        tool_version=stamp.tool_version,
    )
