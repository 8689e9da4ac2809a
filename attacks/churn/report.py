"""What a run found, and whether it may say so: findings, controls, one outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from attacks.churn.judge import Finding, Kind
from attacks.churn.memory import Trend
from attacks.churn.metrics import EngineState
from kvward.terms import ExitCode, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Something that has to have happened for silence to mean anything."""

    name: str
    seen: float | None
    is_met: bool

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class Report:
    """One run.

    Attributes:
        findings: The first findings; `kinds` counts all of them.
        tenants: Names of the tenants that took part.
        wants_memory, wants_metrics: Whether memory and metrics were to be looked at.
        after: The last reading of the engine's metrics after the load.
    """

    counts: Counter[str]
    errors: Counter[str]
    kinds: Counter[Kind]
    findings: Sequence[Finding]
    largest_difference_ratio: float
    tenants: tuple[str, ...]
    duration_s: float
    wants_memory: bool = False
    wants_metrics: bool = False
    trend: Trend | None = None
    allowance_mib: float = 0.0
    before: EngineState | None = None
    after: EngineState | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    def controls(self) -> list[Control]:
        """Return every control of this run."""
        counts = self.counts
        least = min((counts[f"answered:{tenant}"] for tenant in self.tenants), default=0)
        controls = [
            _at_least_one("answers completed", counts["answered"]),
            _at_least_one("answers of the tenant with the fewest", least),
            _at_least_one("cached tokens reported by usage", counts["cached_tokens"]),
            _at_least_one(
                "cancelled before the first token", counts["cancelled_before_first_token"]
            ),
            _at_least_one("cancelled mid-stream", counts["cancelled_after_first_token"]),
            _at_least_one("repeats compared", counts["repeats_compared"]),
            Control(
                name="answers that could not be read",
                seen=counts["unreadable"],
                is_met=not counts["unreadable"],
            ),
        ]
        if self.wants_metrics:
            controls.append(_at_least_one("preemptions during the load", self.preemptions))
            usage = None if self.after is None else self.after.kv_usage_ratio
            counters_only = self.after is not None and self.after.is_counters_only
            controls.append(
                Control(
                    name="usage of the KV pool could be read, where there are gauges",
                    seen=usage,
                    is_met=counters_only or usage is not None,
                )
            )
        if self.wants_memory:
            controls.append(
                _at_least_one(
                    "samples of memory after the warm-up",
                    None if self.trend is None else self.trend.samples,
                )
            )
        return controls

    @property
    def preemptions(self) -> float | None:
        """Return how many requests were preempted during the load; None if nothing tells."""
        if self.after is None or self.after.preemptions is None:
            return None
        before = self.before.preemptions if self.before is not None else None
        return self.after.preemptions - (before or 0.0)

    @property
    def outcome(self) -> Outcome:
        """Return `VIOLATED` for any finding, else `INCONCLUSIVE` if a control is not met."""
        if self.kinds:
            return Outcome.VIOLATED
        met = all(control.is_met for control in self.controls())
        return Outcome.NOT_OBSERVED if met else Outcome.INCONCLUSIVE

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code that the outcome has in every kvward command."""
        return ExitCode[self.outcome.name]

    def to_json(self, *, commit: str | None, version: str, python: str) -> dict[str, object]:
        """Return it as JSON, always with the same keys."""
        return {
            "name": "churn",
            "what": "tenants under churn: foreign words, changed answers, errors, memory, blocks",
            "commit": commit,
            "tool_version": version,
            "python": python,
            "seed": self.options.get("seed"),
            "options": dict(self.options),
            "duration_s": round(self.duration_s, 1),
            "counts": dict(sorted(self.counts.items())),
            "errors": dict(sorted(self.errors.items())),
            "largest_difference_ratio": self.largest_difference_ratio,
            "controls": [control.to_json() for control in self.controls()],
            "rss": None
            if self.trend is None
            else self.trend.to_json() | {"allowance_mib": self.allowance_mib},
            "engine": None
            if self.after is None
            else {
                "before": None if self.before is None else self.before.to_json(),
                "after": self.after.to_json(),
                "preemptions": self.preemptions,
            },
            "findings_by_kind": {str(kind): n for kind, n in sorted(self.kinds.items())},
            "findings": [asdict(finding) for finding in self.findings],
            "outcome": str(self.outcome),
        }

    def render(self) -> str:
        """Render it for people."""
        counts = self.counts
        lines = [
            (
                f"{counts['requests']} requests in {self.duration_s:.0f} s: {counts['answered']} "
                f"answered, {counts['cancelled']} cancelled "
                f"({counts['cancelled_before_first_token']} before the first token), "
                f"{counts['refused']} refused, {counts['failed']} failed."
            ),
            (
                f"{counts['repeats_compared']} repeats compared; the largest difference is "
                f"{self.largest_difference_ratio:.2g} of what is allowed."
            ),
        ]
        if self.trend is not None:
            lines.append(
                f"Memory after the warm-up: {self.trend.start_mib:.0f} MiB at the start, "
                f"{self.trend.end_mib:.0f} at the end, {self.trend.slope_mib_per_min:+.2f} MiB/min."
            )
        for control in self.controls():
            mark = "met" if control.is_met else "NOT MET"
            seen = "unknown" if control.seen is None else f"{control.seen:g}"
            lines.append(f"  control {mark:7}  {control.name}: {seen}")
        lines += [f"  found {count} of {kind}" for kind, count in sorted(self.kinds.items())]
        lines += [_render(finding) for finding in self.findings[:10]]
        return "\n".join([*lines, str(self.outcome)]) + "\n"


def _at_least_one(name: str, seen: float | None) -> Control:
    return Control(name=name, seen=seen, is_met=bool(seen and seen > 0))


def _render(finding: Finding) -> str:
    where = "" if finding.request is None else f" request {finding.request} of {finding.tenant}:"
    owners = "".join(
        f"; of {owner.tenant}/{owner.conversation} ({owner.relation}): {' '.join(owner.words)}"
        for owner in finding.owners[:2]
    )
    return f"    {finding.kind}:{where} {finding.detail}{owners}"
