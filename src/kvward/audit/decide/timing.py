"""Timing: primed probes that answer faster."""

from __future__ import annotations

from math import exp, log

from kvward.audit.decide.parts import make_verdict
from kvward.audit.detectors.timing import TimingReading
from kvward.audit.verdict import Control, Stamp, Trials, Verdict
from kvward.terms import Channel, Outcome, ProbeScope

MAX_HIT_FRACTION = 0.25
_MAX_E = 1e300


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
    return make_verdict(
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


def _ms(value_ns: int | None) -> str:
    return "?" if value_ns is None else f"{value_ns / 1e6:.2f}"
