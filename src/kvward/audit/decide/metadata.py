"""Metadata: reported reuse."""

from __future__ import annotations

from kvward.audit.decide.parts import make_verdict, own_reuse
from kvward.audit.detectors.metadata import MetadataReading
from kvward.audit.stats.bounds import bound_with_sensitivity, lower_rate, upper_rate
from kvward.audit.verdict import Control, Finding, Stamp, Trials, Verdict
from kvward.terms import Channel, Outcome, ProbeScope


def judge_metadata(
    scope: ProbeScope,
    reading: MetadataReading,
    trials: Trials,
    stamp: Stamp,
    *,
    control: MetadataReading | None,
    findings: tuple[Finding, ...],
    odd: tuple[Finding, ...] = (),
    where: str = "",
    beside: tuple[Control, ...] = (),
) -> Verdict:
    """Decide a metadata cell.

    Args:
        control: The positive control's reading; None when this cell is the control itself.
        findings: Facts about every probe that must not report reuse and did.
        odd: The same about any other answer: told of more reuse than its own scopes explain, or
            not its request's own.
        where: Which kinds of probes were told of reuse and which were not; empty where all alike.
        beside: What else was tried in these pairs, for the reader.
    """
    is_control = control is None
    own = reading if control is None else control
    positive = own_reuse(own)
    sensitivity = lower_rate(positive.seen, positive.tried, confidence=stamp.confidence)
    events = len(findings)
    # Only a primed probe could have shown the writer's state; in the control cell, where that is
    # wanted, only an unprimed one could show somebody else's.
    num_counted = reading.num_read - reading.num_primed if is_control else reading.num_primed
    visible = upper_rate(min(events, num_counted), num_counted, confidence=stamp.confidence)
    bound = bound_with_sensitivity(visible, sensitivity)
    probed = {finding.trial for finding in findings}
    others = tuple(finding for finding in odd if finding.trial not in probed)
    if findings:
        outcome = Outcome.VIOLATED
        reason = f"{events} of {reading.num_read} probes reported reuse of state not theirs."
        reason += f" {where[:1].upper()}{where[1:]}." if where else ""
    elif others:
        outcome = Outcome.VIOLATED
        reason = f"No probe, but {len(others)} other answers; the first: {others[0].note}."
    elif (trouble := trials.trouble) is not None:
        outcome, reason = Outcome.INCONCLUSIVE, trouble
    elif reading.num_read == 0 or own.num_read == 0:
        outcome = Outcome.INCONCLUSIVE
        reason = "The target does not report cached tokens"
        reason += f"; {stamp.counter_hint}." if stamp.counter_hint else "."
    elif reading.num_absent:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{reading.num_absent} of {trials.run} answers did not report cached tokens."
    elif not positive.held:
        outcome = Outcome.INCONCLUSIVE
        reason = (
            f"Positive control: reuse was reported for {positive.seen} of {positive.tried} "
            "repeated requests, so caching may be off or the field masked."
        )
    elif bound >= 1 and not is_control:
        outcome, reason = Outcome.INCONCLUSIVE, "So few trials bound nothing."
    else:
        outcome = Outcome.NOT_OBSERVED
        reason = (
            f"Reuse of own state reported {positive.seen} of {positive.tried} times, "
            f"of other state 0 of {num_counted}."
        )
    return make_verdict(
        scope,
        Channel.METADATA,
        trials,
        stamp,
        is_control=is_control,
        outcome=outcome,
        reason=reason,
        events=events + len(others),
        bound=bound if bound < 1 else None,
        bound_kind="rate per probe",
        sensitivity=sensitivity,
        controls=(positive, *beside),
        findings=(*findings, *others),
    )
