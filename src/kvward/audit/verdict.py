"""Verdicts as data: three values, each with its trials, controls, bound and reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvward.terms import CacheTier, Channel, Outcome, ProbeScope, merge_outcomes

MAX_FAILED_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was seen, in facts that can be looked up in the history.

    Attributes:
        trial: Number of the trial.
        reader, source: "tenant/conversation"; the source is None when nobody's words fit.
        words: Code words seen. Our own words only, never a target's text.
        cached_tokens: For metadata.
        probability: That chance alone shows as much, for content.
        replica: Which of the target's addresses the reader asked; None where there is one.
        note: What was odd, in our words; never a target's text.
        deviation_nats: By how much the answer is not what its request alone gives.
    """

    trial: int
    reader: str
    source: str | None = None
    words: tuple[str, ...] = ()
    cached_tokens: int | None = None
    probability: float | None = None
    replica: int | None = None
    note: str | None = None
    deviation_nats: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A trial series whose answer is known.

    Attributes:
        seen, tried: How often the known answer was seen.
        held: Whether that suffices.
    """

    name: str
    seen: int
    tried: int
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to one cell of the plan.

    Attributes:
        is_control: The cell is the positive control: reuse is expected there.
        planned, run, failed: Trials.
        events: How many of them showed what must not be.
        bound: Upper confidence limit of the rate of such events (content, metadata) or of the
            share of hits (timing), after division by sensitivity; None when nothing bounds it.
        bound_kind: What kind of bound it is, in words.
        sensitivity: Lower limit of the share of events that would have been seen.
        e_value, e_threshold: Evidence and what it has to reach, for timing.
        reason: Why, in one sentence.
    """

    clause: str
    scope: ProbeScope
    channel: Channel
    tier: CacheTier
    is_control: bool
    outcome: Outcome
    planned: int
    run: int
    failed: int
    events: int
    bound: float | None
    bound_kind: str | None
    confidence: float
    sensitivity: float | None
    e_value: float | None
    e_threshold: float | None
    controls: tuple[Control, ...]
    reason: str
    findings: tuple[Finding, ...]
    seed: int
    plan_digest: str
    history_digest: str
    tool_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every verdict of a run carries.

    Attributes:
        evidence_threshold: E-value from which a timing cell is violated.
        cache_tier: Which tier was put to the test.
        counter_hint: How the target is made to report reuse; empty where nobody knows.
    """

    confidence: float
    evidence_threshold: float
    seed: int
    plan_digest: str
    history_digest: str
    cache_tier: CacheTier
    tool_version: str
    counter_hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """How many trials of a cell were planned, run, and failed, and the worst arm's failed share."""

    planned: int
    run: int
    failed: int
    failed_ratio_per_arm: tuple[float, ...] = ()

    @property
    def trouble(self) -> str | None:
        """Return why the trials cannot carry a verdict, or None."""
        if self.run == 0 or self.run == self.failed:
            return "No trial was completed."
        if self.run < self.planned:
            return f"Only {self.run} of {self.planned} planned trials were run."
        worst = max(self.failed_ratio_per_arm, default=self.failed / self.run)
        if worst > MAX_FAILED_RATIO:
            return f"{worst:.0%} of the trials of one arm failed."
        return None


def merge_verdicts(verdicts: Sequence[Verdict]) -> Outcome:
    """Return the outcome of an audit: the strongest of its cells."""
    return merge_outcomes([verdict.outcome for verdict in verdicts])
