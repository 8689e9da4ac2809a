"""Interference: own state that is gone after another tenant's flood.

The logic is the reverse of the other cells': reuse is expected and its absence violates. So a
control that does not hold comes first here: where reuse is not seen anyway, its absence says
nothing.
"""

from __future__ import annotations

from kvward.audit.decide.parts import MIN_CONTROL_RATE, make_verdict, own_reuse
from kvward.audit.detectors.interference import InterferenceReading, loss_probability
from kvward.audit.detectors.metadata import MetadataReading
from kvward.audit.stats.bounds import bound_with_sensitivity, lower_rate, upper_rate
from kvward.audit.verdict import MAX_FAILED_RATIO, Control, Finding, Stamp, Trials, Verdict
from kvward.terms import Channel, Outcome, ProbeScope


def judge_interference(
    reading: InterferenceReading,
    trials: Trials,
    stamp: Stamp,
    *,
    control: MetadataReading,
    protected_tokens: int,
    findings: tuple[Finding, ...],
) -> Verdict:
    """Decide whether own state outlives another tenant's flood.

    Args:
        control: The positive control's reading: the same without a flood.
        findings: One for each loss.
    """
    positive = own_reuse(control)
    there = Control(
        name="own state was reused before the flood",
        seen=reading.num_counted,
        tried=reading.num_counted + reading.num_absent,
        held=_suffices(reading.num_counted, reading.num_counted + reading.num_absent),
    )
    fresh = Control(
        name="no reuse reported for a fresh prompt: a loss would show",
        seen=reading.num_fresh_zero,
        tried=reading.num_fresh_told,
        held=_suffices(reading.num_fresh_zero, reading.num_fresh_told),
    )
    pressed = Control(
        name="the flood's own first prompt was gone at its end: it pressed",
        seen=reading.num_pressed,
        tried=reading.num_again_told,
        held=_suffices(reading.num_pressed, reading.num_again_told),
    )
    events = len(reading.lost)
    chance = loss_probability(
        num_lost=events,
        num_flooded=reading.num_counted,
        num_missed=control.num_primed - control.primed_hits,
        num_controls=control.num_primed,
    )
    sensitivity = lower_rate(fresh.seen, fresh.tried, confidence=stamp.confidence)
    visible = upper_rate(events, reading.num_counted, confidence=stamp.confidence)
    bound = bound_with_sensitivity(visible, sensitivity)
    outcome = Outcome.INCONCLUSIVE
    if not positive.held:
        reason = (
            f"Positive control: reuse was reported for {positive.seen} of {positive.tried} "
            "repeated requests, so its absence after a flood would say nothing."
        )
    elif chance * stamp.evidence_threshold <= 1:
        outcome = Outcome.VIOLATED
        reason = (
            f"{events} of {reading.num_counted} times own state of at most {protected_tokens} "
            f"tokens was gone after another tenant's flood; without one {positive.seen} of "
            f"{positive.tried} stayed."
        )
    elif (trouble := trials.trouble or _trouble(reading, protected_tokens)) is not None:
        reason = trouble
    elif not there.held:
        reason = (
            f"Own state was reused in {there.seen} of {there.tried} pairs even before the flood: "
            "there was too little to lose."
        )
    elif not fresh.held:
        reason = "Fresh prompts report reuse, too, so a loss would not show."
    elif events:
        reason = (
            f"{events} of {reading.num_counted} times own state was gone, which chance alone may "
            "do; more pairs would tell."
        )
    elif not pressed.held:
        reason = (
            f"The flood's own first prompt was still cached in {pressed.tried - pressed.seen} of "
            f"{pressed.tried} pairs: it pressed on nothing. A larger --flood-tokens would."
        )
    elif bound >= 1:
        reason = "So few trials bound nothing."
    else:
        outcome = Outcome.NOT_OBSERVED
        reason = (
            f"Own state outlived the flood {reading.num_counted} of {reading.num_counted} times."
        )
    return make_verdict(
        ProbeScope.S8,
        Channel.METADATA,
        trials,
        stamp,
        outcome=outcome,
        reason=reason,
        events=events if outcome is Outcome.VIOLATED else 0,
        bound=bound if bound < 1 else None,
        bound_kind="rate of losses per flood",
        sensitivity=sensitivity,
        controls=(positive, there, fresh, pressed),
        findings=findings if outcome is Outcome.VIOLATED else (),
    )


def _suffices(seen: int, tried: int) -> bool:
    return tried > 0 and seen / tried >= MIN_CONTROL_RATE


def _trouble(reading: InterferenceReading, protected_tokens: int) -> str | None:
    """Return why too few pairs can be counted, or None."""
    if reading.num_pairs == 0:
        return "No trial was completed."
    if reading.num_short > MAX_FAILED_RATIO * reading.num_pairs:
        return f"{reading.num_short} of {reading.num_pairs} floods failed."
    if reading.num_silent:
        return f"{reading.num_silent} of {reading.num_pairs} pairs did not report cached tokens."
    if reading.num_oversized:
        return (
            f"{reading.num_oversized} prompts were larger than the {protected_tokens} tokens that "
            "are promised to be kept."
        )
    return None
