"""Decide: what a finding is worth, in three values, and never more than was looked at.

A violation stands whatever else went wrong. Short of one, everything that keeps a test from
telling makes the cell `INCONCLUSIVE`: no trials, failed trials, a control that did not hold,
caching off, a field that is masked, answers that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from kvward.audit.detectors.metadata import MetadataReading
from kvward.audit.detectors.timing import TimingReading
from kvward.audit.stats.bounds import bound_with_sensitivity, lower_rate, upper_rate
from kvward.audit.verdict import Control, Finding, Stamp, Trials, Verdict
from kvward.terms import Channel, Outcome, ProbeScope

MAX_UNREADABLE_RATIO = 0.05
MIN_CONTROL_RATE = 0.9
MIN_CONTENT_SENSITIVITY = 0.5
MAX_HIT_FRACTION = 0.25
_MAX_E = 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentEvidence:
    """What the content phase gave for one probe scope.

    Attributes:
        num_read: Outputs that could be read.
        num_unreadable: Outputs that could not.
        decoy_hits: How often the same rule named a canary that was never sent.
        control: Own canaries read back from the cache.
        num_unnamed: Outputs with foreign words that could be anybody's, this scope's too.
        reuse_seen: Whether any reuse was seen in this run; None when the target does not tell.
    """

    trials: Trials
    num_read: int
    num_unreadable: int
    findings: tuple[Finding, ...]
    decoy_hits: int
    control: Control
    num_unnamed: int
    reuse_seen: bool | None


def judge_content(scope: ProbeScope, evidence: ContentEvidence, stamp: Stamp) -> Verdict:
    """Decide a content cell."""
    control = evidence.control
    sensitivity = lower_rate(control.seen, control.tried, confidence=stamp.confidence)
    events = len({finding.trial for finding in evidence.findings})
    visible = upper_rate(events, max(events, evidence.num_read), confidence=stamp.confidence)
    bound = bound_with_sensitivity(visible, sensitivity)
    unreadable = evidence.num_unreadable / max(1, evidence.num_read + evidence.num_unreadable)
    if evidence.findings:
        outcome, reason = Outcome.VIOLATED, _content_reason(evidence.findings)
    elif (trouble := evidence.trials.trouble) is not None:
        outcome, reason = Outcome.INCONCLUSIVE, trouble
    elif not control.held:
        outcome = Outcome.INCONCLUSIVE
        reason = f"Own canaries were read back {control.seen} of {control.tried} times only."
    elif unreadable > MAX_UNREADABLE_RATIO:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{unreadable:.0%} of the outputs could not be read for foreign words."
    elif evidence.reuse_seen is None:
        outcome = Outcome.INCONCLUSIVE
        reason = "The target does not tell whether it reused anything, so nothing was put to test."
    elif not evidence.reuse_seen:
        outcome = Outcome.INCONCLUSIVE
        reason = "No reuse was seen at all: caching may be off, so nothing was put to test."
    elif evidence.num_unnamed:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{evidence.num_unnamed} outputs hold words whose source cannot be named."
    elif bound >= 1:
        outcome = Outcome.INCONCLUSIVE
        reason = "So few trials bound nothing."
    else:
        outcome = Outcome.NOT_OBSERVED
        reason = f"No foreign word in {evidence.num_read} outputs."
    return _verdict(
        scope,
        Channel.CONTENT,
        evidence.trials,
        stamp,
        outcome=outcome,
        reason=reason,
        events=events,
        bound=bound if bound < 1 else None,
        bound_kind="rate per output",
        sensitivity=sensitivity,
        controls=(
            control,
            Control(name="decoys named", seen=evidence.decoy_hits, tried=evidence.num_read,
                    held=evidence.decoy_hits == 0),
        ),
        findings=evidence.findings,
    )  # fmt: skip


def judge_metadata(
    scope: ProbeScope,
    reading: MetadataReading,
    trials: Trials,
    stamp: Stamp,
    *,
    control: MetadataReading | None,
    findings: tuple[Finding, ...],
) -> Verdict:
    """Decide a metadata cell.

    Args:
        control: The positive control's reading; None when this cell is the control itself.
        findings: Facts about every trial that must not report reuse and did.
    """
    is_control = control is None
    own = reading if control is None else control
    rate = own.primed_hits / own.num_primed if own.num_primed else 0.0
    positive = Control(
        name="reuse reported for the same request (S0)",
        seen=own.primed_hits,
        tried=own.num_primed,
        held=rate >= MIN_CONTROL_RATE,
    )
    sensitivity = lower_rate(positive.seen, positive.tried, confidence=stamp.confidence)
    events = len(findings)
    # Only a primed probe could have shown the writer's state; in the control cell, where that is
    # wanted, only an unprimed one could show somebody else's.
    num_counted = reading.num_read - reading.num_primed if is_control else reading.num_primed
    visible = upper_rate(min(events, num_counted), num_counted, confidence=stamp.confidence)
    bound = bound_with_sensitivity(visible, sensitivity)
    if findings:
        outcome = Outcome.VIOLATED
        reason = f"{events} of {reading.num_read} probes reported reuse of state not theirs."
    elif (trouble := trials.trouble) is not None:
        outcome, reason = Outcome.INCONCLUSIVE, trouble
    elif reading.num_read == 0 or own.num_read == 0:
        outcome = Outcome.INCONCLUSIVE
        reason = "The target does not report cached tokens."
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
    return _verdict(
        scope,
        Channel.METADATA,
        trials,
        stamp,
        is_control=is_control,
        outcome=outcome,
        reason=reason,
        events=events,
        bound=bound if bound < 1 else None,
        bound_kind="rate per probe",
        sensitivity=sensitivity,
        controls=(positive,),
        findings=findings,
    )


def judge_timing(
    scope: ProbeScope,
    reading: TimingReading,
    trials: Trials,
    stamp: Stamp,
    *,
    control: TimingReading | None,
) -> Verdict:
    """Decide a timing cell. The control is None when this cell is the control itself."""
    is_control = control is None
    own = reading if control is None else control
    threshold = log(stamp.evidence_threshold)
    positive = Control(
        name="same request faster (S0)",
        seen=own.num_faster,
        tried=own.num_pairs,
        held=own.log_e_max >= threshold,
    )
    e_text = f"E = {min(exp(min(reading.log_e_max, 690.0)), _MAX_E):.3g}"
    bound = reading.hit_fraction_bound
    if reading.log_e_max >= threshold and not is_control:
        outcome = Outcome.VIOLATED
        reason = (
            f"Primed probes were faster: {e_text} against {stamp.evidence_threshold:.3g}, "
            f"medians {_ms(reading.median_primed_ns)} and {_ms(reading.median_unprimed_ns)} ms."
        )
    elif (trouble := trials.trouble) is not None:
        outcome, reason = Outcome.INCONCLUSIVE, trouble
    elif not positive.held:
        outcome = Outcome.INCONCLUSIVE
        reason = (
            "Positive control: repeating a request did not make it measurably faster in "
            f"{own.num_pairs} pairs, so a hit could not be told from a miss here."
        )
    elif reading.log_e_slower >= threshold:
        outcome = Outcome.INCONCLUSIVE
        reason = "Primed probes were slower: times depend on priming, though not as a hit would."
    elif is_control:
        outcome = Outcome.NOT_OBSERVED
        reason = (
            f"Hits can be told from misses: {e_text}, medians "
            f"{_ms(reading.median_primed_ns)} and {_ms(reading.median_unprimed_ns)} ms."
        )
    elif bound is None or bound > MAX_HIT_FRACTION:
        outcome = Outcome.INCONCLUSIVE
        reason = (
            f"{reading.num_pairs} pairs exclude no share of hits below "
            f"{MAX_HIT_FRACTION:.0%}; more pairs or a quieter machine would."
        )
    else:
        outcome = Outcome.NOT_OBSERVED
        reason = f"Primed probes were not faster: {e_text} in {reading.num_pairs} pairs."
    return _verdict(
        scope,
        Channel.TIMING,
        trials,
        stamp,
        is_control=is_control,
        outcome=outcome,
        reason=reason,
        events=0,
        bound=None if is_control else bound,
        bound_kind="share of hits, model-based",
        sensitivity=None,
        controls=(positive,),
        findings=(),
        e_value=min(exp(min(reading.log_e_max, 690.0)), _MAX_E),
        e_threshold=stamp.evidence_threshold,
    )


_CLAUSES = {Channel.CONTENT: "scope", Channel.METADATA: "metadata", Channel.TIMING: "scope"}


def _verdict(
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
    return Verdict(
        clause="origin" if scope is ProbeScope.S5 else _CLAUSES[channel],
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


def _content_reason(findings: Sequence[Finding]) -> str:
    first = findings[0]
    if first.source is None:
        return (
            f"{len(findings)} outputs hold words that their request did not, of no single "
            "session: cached state is corrupt."
        )
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    return f"Words of {first.source} reached {first.reader}{more}."


def _ms(value_ns: int | None) -> str:
    return "?" if value_ns is None else f"{value_ns / 1e6:.2f}"
