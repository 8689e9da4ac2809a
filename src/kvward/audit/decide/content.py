"""Content: foreign words in answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvward.audit.decide.doors import NO_DOORS, DoorEvidence
from kvward.audit.decide.parts import (
    MAX_UNREADABLE_RATIO,
    NO_REUSE,
    bound_events,
    decoys_named,
    make_verdict,
)
from kvward.audit.stats.bounds import lower_rate
from kvward.audit.verdict import Control, Finding, Stamp, Trials, Verdict
from kvward.terms import Channel, Outcome, ProbeScope

MIN_CONTENT_SENSITIVITY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentEvidence:
    """What the content phase gave for one probe scope.

    Attributes:
        num_read: Outputs that could be read.
        num_unreadable: Outputs that could not.
        decoy_hits: How often the same rule named a canary that was never sent.
        control: Own canaries read back from the cache.
        hint: What to do where own canaries do not come back.
        bound_kind: What the bound is of, in words.
        num_unnamed: Outputs with foreign words that could be anybody's, this scope's too.
        reuse_seen: Whether any reuse was seen in this run; None when the target does not tell.
        doors: What side doors showed; no output, and never counted as one.
    """

    trials: Trials
    num_read: int
    num_unreadable: int
    findings: tuple[Finding, ...]
    decoy_hits: int
    control: Control
    num_unnamed: int
    hint: str
    bound_kind: str = "rate per output"
    reuse_seen: bool | None
    doors: DoorEvidence = NO_DOORS


def judge_content(scope: ProbeScope, evidence: ContentEvidence, stamp: Stamp) -> Verdict:
    """Decide a content cell."""
    control = evidence.control
    sensitivity = lower_rate(control.seen, control.tried, confidence=stamp.confidence)
    events = len({finding.trial for finding in evidence.findings})
    bound = bound_events(
        events, evidence.num_read, sensitivity=sensitivity, confidence=stamp.confidence
    )
    unreadable = evidence.num_unreadable / max(1, evidence.num_read + evidence.num_unreadable)
    if evidence.findings:
        outcome, reason = Outcome.VIOLATED, _content_reason(evidence.findings)
    elif evidence.doors.findings:
        outcome, reason = Outcome.VIOLATED, evidence.doors.reason
    elif (trouble := evidence.trials.trouble) is not None:
        outcome, reason = Outcome.INCONCLUSIVE, trouble
    elif not control.held:
        outcome = Outcome.INCONCLUSIVE
        reason = (
            f"Own canaries were read back {control.seen} of {control.tried} times only "
            f"({evidence.hint})."
        )
    elif unreadable > MAX_UNREADABLE_RATIO:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{unreadable:.0%} of the outputs could not be read for foreign words."
    elif not evidence.reuse_seen:
        outcome, reason = Outcome.INCONCLUSIVE, NO_REUSE[evidence.reuse_seen]
    elif evidence.num_unnamed:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{evidence.num_unnamed} outputs hold words whose source cannot be named."
    elif bound >= 1:
        outcome = Outcome.INCONCLUSIVE
        reason = "So few trials bound nothing."
    else:
        outcome = Outcome.NOT_OBSERVED
        reason = f"No foreign word in {evidence.num_read} outputs."
    return make_verdict(
        scope,
        Channel.CONTENT,
        evidence.trials,
        stamp,
        outcome=outcome,
        reason=reason,
        events=events + evidence.doors.num_events,
        bound=bound if bound < 1 else None,
        bound_kind=evidence.bound_kind,
        sensitivity=sensitivity,
        controls=(
            control,
            decoys_named(evidence.decoy_hits, evidence.num_read),
            *evidence.doors.controls,
        ),
        findings=(*evidence.findings, *evidence.doors.findings),
    )  # fmt: skip


def _content_reason(findings: Sequence[Finding]) -> str:
    first = findings[0]
    if first.source is None:
        return (
            f"{len(findings)} outputs hold words that their request did not, of no single "
            "session: cached state is corrupt."
        )
    more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    return f"Words of {first.source} reached {first.reader}{more}."
