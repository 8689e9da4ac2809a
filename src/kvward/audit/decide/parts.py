"""What all decisions have in common."""

from __future__ import annotations

from kvward.audit.detectors.metadata import MetadataReading
from kvward.audit.stats.bounds import bound_with_sensitivity, upper_rate
from kvward.audit.verdict import Control, Finding, Stamp, Trials, Verdict
from kvward.terms import Channel, ClauseId, Outcome, ProbeScope

MAX_UNREADABLE_RATIO = 0.05
MIN_CONTROL_RATE = 0.9
NO_REUSE = {
    None: "The target does not tell whether it reused anything, so nothing was put to test.",
    False: "No reuse was seen at all: caching may be off, so nothing was put to test.",
}
"""By whether reuse was seen: why an answer under load says nothing about it."""

_CLAUSES = {
    Channel.CONTENT: ClauseId.SCOPE,
    Channel.DIFFERENTIAL: ClauseId.SCOPE,
    Channel.METADATA: ClauseId.METADATA,
    Channel.TIMING: ClauseId.SCOPE,
}
_CLAUSE_OF_SCOPE = {ProbeScope.S5: ClauseId.ORIGIN, ProbeScope.S8: ClauseId.INTERFERENCE}


def bound_events(num_events: int, num_read: int, *, sensitivity: float, confidence: float) -> float:
    """Return the upper limit of a rate of events among what was read, divided by sensitivity."""
    visible = upper_rate(num_events, max(num_events, num_read), confidence=confidence)
    return bound_with_sensitivity(visible, sensitivity)


def own_reuse(reading: MetadataReading) -> Control:
    """Return the positive control of counts: a repeated request is told of reuse.

    Args:
        reading: Of the probe scope S0.
    """
    rate = reading.primed_hits / reading.num_primed if reading.num_primed else 0.0
    return Control(
        name="reuse reported for the same request (S0)",
        seen=reading.primed_hits,
        tried=reading.num_primed,
        held=rate >= MIN_CONTROL_RATE,
    )


def decoys_named(num_hits: int, num_read: int) -> Control:
    """Return how often the rule that names a source named what was never sent."""
    return Control(name="decoys named", seen=num_hits, tried=num_read, held=num_hits == 0)


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
