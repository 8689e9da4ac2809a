"""Differential: answers that are not what their request alone gives."""

from __future__ import annotations

from dataclasses import dataclass

from kvward.audit.decide.parts import MAX_UNREADABLE_RATIO, NO_REUSE, bound_events, make_verdict
from kvward.audit.stats.bounds import lower_rate
from kvward.audit.verdict import Control, Finding, Stamp, Trials, Verdict
from kvward.terms import Channel, Outcome, ProbeScope


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialEvidence:
    """What a comparison with the reference gave.

    Attributes:
        num_read: Answers that could be compared.
        num_unreadable: Answers that could not.
        margin_nats: From where on an answer counts as differing; as usual answers alone differ.
        alone: Answers to requests that met no cached state, and agree.
        reuse_seen: Whether any reuse was seen in this run; None when the target does not tell.
        simulated: Exchanged blocks that would have been seen.
    """

    trials: Trials
    num_read: int
    num_unreadable: int
    findings: tuple[Finding, ...]
    margin_nats: float
    alone: Control
    reuse_seen: bool | None
    simulated: Control


def judge_differential(scope: ProbeScope, evidence: DifferentialEvidence, stamp: Stamp) -> Verdict:
    """Decide the differential cell.

    A difference means something only where answers to requests alone agree: without the canary
    model, or at a lower precision, they do not, and the cell says so.
    """
    alone, simulated = evidence.alone, evidence.simulated
    sensitivity = lower_rate(simulated.seen, simulated.tried, confidence=stamp.confidence)
    events = len(evidence.findings)
    bound = bound_events(
        events, evidence.num_read, sensitivity=sensitivity, confidence=stamp.confidence
    )
    unreadable = evidence.num_unreadable / max(1, evidence.num_read + evidence.num_unreadable)
    if evidence.findings and alone.held:
        worst = max(finding.deviation_nats or 0.0 for finding in evidence.findings)
        outcome = Outcome.VIOLATED
        reason = (
            f"{events} of {evidence.num_read} answers are not what their own request gives, by up "
            f"to {worst:.3g} nats: cached state is corrupt."
        )
    elif (trouble := evidence.trials.trouble) is not None:
        outcome, reason = Outcome.INCONCLUSIVE, trouble
    elif not alone.held:
        outcome = Outcome.INCONCLUSIVE
        reason = (
            f"Answers to requests alone agreed with the canary model {alone.seen} of "
            f"{alone.tried} times: it is not served, or not in float32."
        )
    elif unreadable > MAX_UNREADABLE_RATIO:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{unreadable:.0%} of the answers could not be compared."
    elif not evidence.reuse_seen:
        outcome, reason = Outcome.INCONCLUSIVE, NO_REUSE[evidence.reuse_seen]
    elif bound >= 1:
        outcome, reason = Outcome.INCONCLUSIVE, "So few trials bound nothing."
    else:
        outcome = Outcome.NOT_OBSERVED
        reason = (
            f"{evidence.num_read} answers are within {evidence.margin_nats:.2g} nats of what their "
            "own requests give."
        )
    return make_verdict(
        scope,
        Channel.DIFFERENTIAL,
        evidence.trials,
        stamp,
        outcome=outcome,
        reason=reason,
        events=events if alone.held else 0,
        bound=bound if bound < 1 and alone.held else None,
        bound_kind="rate per output",
        sensitivity=sensitivity,
        controls=(alone, simulated),
        findings=evidence.findings if alone.held else (),
    )
