"""Content of a conversation's own past: stale and dirty reads, and own writes that are lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

MIN_TURN_CONTROLS = 20
"""From so many turns behind reuse on, what they show of the first turn is the sensitivity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvidence:
    """What the answers of dialogues gave.

    Attributes:
        num_read: Outputs that could be read.
        num_unreadable: Outputs that could not.
        findings: Stale and dirty reads, and lost own writes, in the order of their trials.
        counts: How many of each there are.
        num_partial: Outputs with words of a version given up, too few to be told from chance.
        decoy_hits: How often the same rule named a version that was never sent.
        control: Own canaries read back from the cache.
        behind_reuse: First turns seen in answers that reused state of the dialogue.
        reuse_seen: Whether any reuse was seen in this run; None when the target does not tell.
        turns_tell: Whether answers of later turns tell what was reused.
    """

    trials: Trials
    num_read: int
    num_unreadable: int
    findings: tuple[Finding, ...]
    counts: Mapping[str, int]
    num_partial: int
    decoy_hits: int
    control: Control
    behind_reuse: Control
    reuse_seen: bool | None
    turns_tell: bool


def judge_turns(evidence: TurnEvidence, stamp: Stamp) -> Verdict:
    """Decide the content cell of a conversation's next turn."""
    own, behind = evidence.control, evidence.behind_reuse
    telling = behind if behind.tried >= MIN_TURN_CONTROLS else own
    sensitivity = lower_rate(telling.seen, telling.tried, confidence=stamp.confidence)
    events = len({finding.trial for finding in evidence.findings})
    bound = bound_events(
        events, evidence.num_read, sensitivity=sensitivity, confidence=stamp.confidence
    )
    outcome, reason = _decide(evidence, bound)
    return make_verdict(
        ProbeScope.S1,
        Channel.CONTENT,
        evidence.trials,
        stamp,
        outcome=outcome,
        reason=reason,
        events=events,
        bound=bound if bound < 1 else None,
        bound_kind="rate per output of a dialogue",
        sensitivity=sensitivity,
        controls=(
            own,
            behind,
            decoys_named(evidence.decoy_hits, evidence.num_read),
        ),
        findings=evidence.findings,
    )


def _decide(evidence: TurnEvidence, bound: float) -> tuple[Outcome, str]:
    if evidence.findings:
        return Outcome.VIOLATED, _violation(evidence)
    doubt = _doubt(evidence, bound)
    if doubt is not None:
        return Outcome.INCONCLUSIVE, doubt
    reason = (
        f"Nothing given up came back, and no turn was missing, in {evidence.num_read} outputs, "
        f"{evidence.behind_reuse.tried} of them told of reuse."
    )
    return Outcome.NOT_OBSERVED, reason


def _doubt(evidence: TurnEvidence, bound: float) -> str | None:
    """Return why nothing can be said, or None."""
    unreadable = evidence.num_unreadable / max(1, evidence.num_read + evidence.num_unreadable)
    if (trouble := evidence.trials.trouble) is not None:
        return trouble
    if not evidence.control.held:
        return _broken("Own canaries were read back", evidence.control)
    if unreadable > MAX_UNREADABLE_RATIO:
        return f"{unreadable:.0%} of the outputs of dialogues could not be read."
    if not evidence.behind_reuse.held:
        return _broken("First turns were seen behind reuse", evidence.behind_reuse)
    if not evidence.reuse_seen:
        return NO_REUSE[evidence.reuse_seen]
    if evidence.turns_tell and not evidence.behind_reuse.tried:
        return "No answer of a dialogue reused state, so nothing was put to test."
    if evidence.num_partial:
        return (
            f"{evidence.num_partial} outputs hold words of a version given up, too few to be told "
            "from chance."
        )
    if bound >= 1:
        return "So few trials bound nothing."
    return None


def _broken(what: str, control: Control) -> str:
    return f"{what} {control.seen} of {control.tried} times only."


def _violation(evidence: TurnEvidence) -> str:
    counts = ", ".join(
        f"{count} {name}{'' if count == 1 else 's'}"
        for name, count in evidence.counts.items()
        if count
    )
    first = evidence.findings[0]
    return f"{counts}; the first in {first.reader}, {first.note}."
