"""The report for a terminal, and the plan before it."""

from __future__ import annotations

from collections.abc import Sequence

from kvward.audit.plan import Elicitation, Plan
from kvward.audit.report.model import AuditReport
from kvward.audit.report.plain import plain
from kvward.audit.verdict import Finding, Verdict
from kvward.terms import CacheTier, Outcome

_SHOWN_FINDINGS = 3
_NOMINAL_SECONDS = (0.02, 0.5)


_ELICITATIONS = {
    Elicitation.LOGPROBS: "read from logprobs of the canary model",
    Elicitation.TEXT: "read from what the model prints",
}


def render_plan(plan: Plan) -> str:
    """Return what is about to be done, to be read before the first request."""
    times = [
        f"{plan.estimated_seconds(seconds_per_request=s):.0f} s at {s * 1000:.0f} ms a request"
        for s in _NOMINAL_SECONDS
    ]
    cells = ", ".join(f"{cell.scope} {cell.channel}" for cell in plan.cells)
    return _lines(
        [
            f"Plan {plan.digest[:16]} for {plan.url}, model {plan.model}, seed {plan.seed}",
            *_target_lines(plan),
            f"  tenants   {', '.join(plan.tenants)}",
            f"  cells     {cells}",
            f"  requests  {plan.num_requests}, about {plan.num_tokens} prompt tokens",
            f"  time      about {' or '.join(times)}",
            f"  error     {plan.alpha:g} for the whole audit; bounds at {plan.confidence:.0%}",
        ]
    )


def _target_lines(plan: Plan) -> list[str]:
    """Return what the target is taken for, by which routes and addresses it is asked."""
    routes = ", ".join(route.value for route in plan.routes)
    how = "streamed" if plan.streamed else "not streamed"
    lines = [f"  routes    {routes}, {how}"]
    if plan.has_content:
        lines.append(f"  content   {_ELICITATIONS[plan.elicitation]}")
    if plan.preset:
        lines.insert(0, f"  target    {plan.preset} ({plan.preset_reason})")
    if len(plan.replicas) > 1:
        lines += [f"  replica {n} {url}" for n, url in enumerate(plan.replicas)]
    return lines


def render_text(report: AuditReport) -> str:
    """Return the report as lines of at most about 110 characters."""
    lines = [f"{report.title}: {report.outcome}"]
    if report.plan.cache_tier is not CacheTier.DEVICE:
        lines.append(f"  What is reused here lay in the {report.plan.cache_tier.value} tier.")
    if report.note:
        lines.append(f"  {report.note}")
    for verdict in report.verdicts:
        lines += _verdict_lines(verdict)
    lines.append(
        f"  {report.num_trials} requests in {report.duration_s:.1f} s, {report.num_failed} failed; "
        f"plan {report.plan.digest[:16]}, history {_history(report)}"
    )
    lines += _target_lines(report.plan)
    if report.num_dropped_pairs:
        lines.append(
            f"  The times of {report.num_dropped_pairs} pairs were not compared: the target "
            "refused a probe for now after the other one was answered."
        )
    lines.append("  Not looked at: " + "; ".join(report.unplanned) + ".")
    return _lines(lines)


def _lines(lines: Sequence[str]) -> str:
    """Return lines for a terminal, which would obey control characters in names of a target."""
    return "\n".join(plain(line) for line in lines)


def bound_text(verdict: Verdict) -> str:
    """Return a verdict's bound in words, or why there is none."""
    if verdict.events:
        return f"seen in {verdict.events} of {verdict.run} requests"
    if verdict.bound is None:
        return "control" if verdict.is_control else "no bound"
    kind = verdict.bound_kind or ""
    return f"≤ {verdict.bound:.2g} ({kind}, {verdict.confidence:.0%})"


def outcome_text(verdict: Verdict) -> str:
    """Return the outcome, or for a control whether it held."""
    if verdict.is_control and verdict.outcome is Outcome.NOT_OBSERVED:
        return "control held"
    return verdict.outcome.value


def finding_text(finding: Finding) -> str:
    """Return one finding as a sentence."""
    at = "" if finding.replica is None else f" at replica {finding.replica}"
    if finding.cached_tokens is None and finding.note is not None and not finding.words:
        source = f", of {finding.source}" if finding.source else ""
        return f"The answer to {finding.reader}{at}: {finding.note}{source}."
    if finding.cached_tokens is not None:
        source = f" of {finding.source}" if finding.source else ""
        source += f"; {finding.note}" if finding.note else ""
        return f"{finding.reader} was told of {finding.cached_tokens} cached tokens{source}{at}."
    if finding.deviation_nats is not None:
        return f"The answer to {finding.reader}{at} is off by {finding.deviation_nats:.3g} nats."
    words = " ".join(finding.words)
    if finding.source is None:
        return (
            f"The answer to {finding.reader}{at} holds words of no single other session: {words}."
        )
    chance = f", by chance {finding.probability:.0e}" if finding.probability is not None else ""
    note = f"; {finding.note}" if finding.note else ""
    return f"{finding.reader}{at} was shown {finding.source}'s words: {words}{chance}{note}."


def _verdict_lines(verdict: Verdict) -> list[str]:
    what = f"{verdict.channel} {verdict.scope}"
    name = outcome_text(verdict)
    lines = [f"  {what:12} {name:14} {verdict.reason}"]
    details = []
    if verdict.bound is not None:
        kind = "" if verdict.events else "bound "
        details.append(kind + bound_text(verdict))
    if verdict.sensitivity is not None:
        details.append(f"sensitivity ≥ {verdict.sensitivity:.3f}")
    details += [f"{c.name}: {c.seen} of {c.tried}" for c in verdict.controls]
    lines.append(f"{'':28}{'; '.join(details)}")
    lines += [f"{'':28}- {finding_text(f)}" for f in verdict.findings[:_SHOWN_FINDINGS]]
    if len(verdict.findings) > _SHOWN_FINDINGS:
        lines.append(f"{'':28}- and {len(verdict.findings) - _SHOWN_FINDINGS} more")
    return lines


def _history(report: AuditReport) -> str:
    digests: Sequence[str] = [verdict.history_digest for verdict in report.verdicts]
    return digests[0][:16] if digests else "none"
