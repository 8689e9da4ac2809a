"""The report as a short Markdown page, for the summary of a job or a comment."""

from __future__ import annotations

import re

from kvward.audit.report.model import AuditReport, finding_ids
from kvward.audit.report.plain import plain
from kvward.audit.report.text import bound_text, finding_text, outcome_text
from kvward.audit.verdict import Verdict

_SHOWN_FINDINGS = 3
_SIGNS = re.compile(r"([\\`*_{}\[\]<>()#+!|~&:$^=\"'-])")
_WORD_JOINER = "\N{WORD JOINER}"


def render_markdown(report: AuditReport) -> str:
    """Return a table of all cells with verdict and bound, findings, and what was not looked at."""
    plan = report.plan
    sent = f"{report.num_trials} requests in {report.duration_s:.1f} s, {report.num_failed} failed"
    limits = "A verdict says what was seen under the load and within the bound stated, only that."
    lines = [
        f"# {_prose(report.title)}",
        "",
        f"**{report.outcome}** for {_prose(plan.url)}, model {_prose(plan.model)}: {sent}.",
        "",
        *([_prose(report.note), ""] if report.note else []),
        "| Cell | Verdict | Bound | Sensitivity | Requests | Why |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(verdict) for verdict in report.verdicts),
        "",
    ]
    found = [line for verdict in report.verdicts for line in _findings(verdict)]
    if found:
        lines += ["## Findings", "", *found, ""]
    lines += [
        "## Not looked at",
        "",
        *(f"- {_prose(row)}" for row in report.unplanned),
        "",
        f"Plan {plan.digest}, seed {plan.seed}. {limits}",
        "",
    ]
    return "\n".join(lines)


def _row(verdict: Verdict) -> str:
    sensitivity = "" if verdict.sensitivity is None else f"{verdict.sensitivity:.3f}"
    cells = [
        f"{verdict.channel.value} {verdict.scope.value}, {verdict.scope.meaning}",
        outcome_text(verdict),
        bound_text(verdict),
        sensitivity,
        f"{verdict.run} of {verdict.planned}, {verdict.failed} failed",
        verdict.reason,
    ]
    return f"| {' | '.join(_prose(cell) for cell in cells)} |"


def _findings(verdict: Verdict) -> list[str]:
    named = list(zip(finding_ids(verdict), verdict.findings, strict=True))
    lines = [
        f"- {_prose(name)}: {_prose(finding_text(finding))}"
        for name, finding in named[:_SHOWN_FINDINGS]
    ]
    if len(named) > _SHOWN_FINDINGS:
        rest = len(named) - _SHOWN_FINDINGS
        lines.append(f"- and {rest} more of {verdict.channel} {verdict.scope}")
    return lines


def _prose(text: str) -> str:
    """Return a text without any sign of Markdown's, nor what sites make links of by themselves.

    An at sign would call somebody, and "www." and "http:" become links without any bracket.
    """
    shown = _SIGNS.sub(r"\\\1", plain(text))
    return re.sub(r"(@|www)", rf"\1{_WORD_JOINER}", shown, flags=re.IGNORECASE)
