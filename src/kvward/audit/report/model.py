"""What a report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from kvward.audit.history import Trial
from kvward.audit.judge import Judgement
from kvward.audit.plan import Plan
from kvward.audit.verdict import Verdict, merge_verdicts
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope

FORMAT = "kvward audit report 1"


class InCell(Protocol):
    """Whatever belongs to a cell: a verdict, decided now or recorded."""

    @property
    def channel(self) -> Channel:
        """Return the channel."""

    @property
    def scope(self) -> ProbeScope:
        """Return the probe scope."""


def cell_id(verdict: InCell) -> str:
    """Return what names a cell in every format, for example "metadata-S3"."""
    return f"{verdict.channel.value}-{verdict.scope.value}"


def finding_ids(verdict: Verdict) -> tuple[str, ...]:
    """Return a name for each finding of a verdict, in order and unique in its report.

    "metadata-S3-412" is the finding of trial 412; a second one of the same trial ends in "-2".
    """
    seen: dict[int, int] = {}
    names = []
    for finding in verdict.findings:
        seen[finding.trial] = seen.get(finding.trial, 0) + 1
        again = "" if seen[finding.trial] == 1 else f"-{seen[finding.trial]}"
        names.append(f"{cell_id(verdict)}-{finding.trial}{again}")
    return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """One audit, decided.

    Attributes:
        title: What was audited, in a few words.
        note: How the target was set up, one sentence; empty when the auditor cannot know.
        started_unix_s: When it began.
        duration_s: How long it took.
    """

    title: str
    note: str
    plan: Plan
    judgement: Judgement
    num_trials: int
    num_failed: int
    started_unix_s: int
    duration_s: float

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Return the verdicts in the plan's order."""
        return self.judgement.verdicts

    @property
    def outcome(self) -> Outcome:
        """Return the strongest outcome of all planned cells."""
        return merge_verdicts(self.verdicts)

    @property
    def unplanned(self) -> list[str]:
        """Return what was not looked at."""
        planned = {(cell.scope, cell.channel) for cell in self.plan.cells}
        scopes = {cell.scope for cell in self.plan.cells}
        rows = [
            f"{scope} ({scope.meaning})"
            for scope in ProbeScope
            if scope not in scopes and scope is not ProbeScope.S2
        ]
        if (ProbeScope.S2, Channel.METADATA) not in planned:
            rows.append("reuse between two conversations of one tenant: no level was declared")
        if (ProbeScope.S8, Channel.METADATA) not in planned:
            rows.append("what a flood of one tenant does to another's state: no share was declared")
        rows += [
            f"the {channel} channel"
            for channel in Channel
            if all(cell.channel is not channel for cell in self.plan.cells)
        ]
        tier = self.plan.cache_tier
        own = "engine's own memory" if tier is CacheTier.DEVICE else f"{tier.value} tier"
        routes = " and ".join(route.value for route in self.plan.routes)
        rows += [f"tiers other than the {own}", f"routes other than {routes}"]
        return rows

    @property
    def num_dropped_pairs(self) -> int:
        """Return how many pairs' times were not compared, because a probe had to be sent again."""
        return sum(self.judgement.dropped_pairs.values())

    def to_json(self) -> bytes:
        """Return the machine-readable report, as `docs/spec/audit-report-v1.schema.json` has it."""
        value = {
            "format": FORMAT,
            "title": self.title,
            "note": self.note,
            "outcome": self.outcome,
            "plan": self.plan,
            "plan_digest": self.plan.digest,
            "verdicts": [_verdict_value(verdict) for verdict in self.verdicts],
            "not_planned": self.unplanned,
            "num_trials": self.num_trials,
            "num_failed": self.num_failed,
            "num_dropped_pairs": self.num_dropped_pairs,
            "started_unix_s": self.started_unix_s,
            "duration_s": round(self.duration_s, 3),
        }
        return msgspec.json.format(msgspec.json.encode(value), indent=1)


def _verdict_value(verdict: Verdict) -> dict[str, Any]:  # Any: JSON of a verdict
    value: dict[str, Any] = msgspec.to_builtins(verdict)
    named = zip(finding_ids(verdict), value["findings"], strict=True)
    return value | {"findings": [{"id": name, **finding} for name, finding in named]}


def make_report(
    *,
    title: str,
    note: str,
    plan: Plan,
    judgement: Judgement,
    trials: Sequence[Trial],
    started_unix_s: int,
    duration_s: float,
) -> AuditReport:
    """Put a report together."""
    return AuditReport(
        title=title,
        note=note,
        plan=plan,
        judgement=judgement,
        num_trials=len(trials),
        num_failed=sum(trial.error is not None for trial in trials),
        started_unix_s=started_unix_s,
        duration_s=duration_s,
    )
