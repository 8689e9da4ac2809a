"""The report as OpenMetrics text, for a push gateway or a node exporter's folder.

Everything is a gauge: an audit is a snapshot. A cell without a bound has no sample of it, which is
not the same as a bound of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import (
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from kvward.audit.report.model import AuditReport
from kvward.audit.report.plain import plain
from kvward.audit.verdict import Verdict
from kvward.terms import Outcome

_PREFIX = "kvward_audit"
_CELL_LABELS = ("target", "cache_tier", "channel", "scope", "control")
_MAX_LABEL = 200
_GAUGES: tuple[tuple[str, str, Callable[[Verdict], float | None]], ...] = (
    ("bound", "Upper confidence limit of the cell's rate or share.", lambda v: v.bound),
    ("sensitivity", "Share of events that would have been seen.", lambda v: v.sensitivity),
    ("evidence", "E-value of the cell.", lambda v: v.e_value),
    ("events", "Requests that showed what must not be.", lambda v: v.events),
    ("planned_requests", "Requests planned for the cell.", lambda v: v.planned),
    ("run_requests", "Requests run for the cell.", lambda v: v.run),
    ("failed_requests", "Requests of the cell that failed.", lambda v: v.failed),
)


def render_openmetrics(report: AuditReport) -> bytes:
    """Return the report as OpenMetrics 1.0 text, in UTF-8."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(report))
    return bytes(generate_latest(registry))


class _Snapshot(Collector):
    def __init__(self, report: AuditReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        report = self._report
        target = _label(report.plan.url)
        info = InfoMetricFamily(_PREFIX, "What was audited.", labels=["target"])
        details = {
            "model": _label(report.plan.model),
            "tier": report.plan.tier.value,
            "plan_digest": report.plan.digest,
            "tool_version": report.plan.tool_version,
        }
        info.add_metric([target], details)
        yield info
        outcome = StateSetMetricFamily(
            f"{_PREFIX}_outcome", "The cell's outcome.", labels=_CELL_LABELS
        )
        for verdict in report.verdicts:
            states = {one.value: one is verdict.outcome for one in Outcome}
            outcome.add_metric(_cell(target, verdict), states)
        yield outcome
        for name, help_text, read in _GAUGES:
            gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", help_text, labels=_CELL_LABELS)
            for verdict in report.verdicts:
                value = read(verdict)
                if value is not None:
                    gauge.add_metric(_cell(target, verdict), value)
            yield gauge
        for name, help_text, number in (
            ("start_time_seconds", "When the audit began.", report.started_unix_s),
            ("duration_seconds", "How long it took.", report.duration_s),
        ):
            whole = GaugeMetricFamily(f"{_PREFIX}_{name}", help_text, labels=["target"])
            whole.add_metric([target], number)
            yield whole


def _cell(target: str, verdict: Verdict) -> list[str]:
    control = "true" if verdict.is_control else "false"
    return [target, verdict.tier.value, verdict.channel.value, verdict.scope.value, control]


def _label(text: str) -> str:
    return plain(text, max_characters=_MAX_LABEL)
