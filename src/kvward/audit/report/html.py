"""The report as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import jinja2
from markupsafe import Markup

from kvward import __version__
from kvward.audit.report.matrices import plot_content, plot_reuse
from kvward.audit.report.model import AuditReport, finding_ids
from kvward.audit.report.plain import plain
from kvward.audit.report.plots import plot_bounds, plot_evidence, plot_times
from kvward.audit.report.text import bound_text, finding_text, outcome_text
from kvward.audit.verdict import Verdict

_SHOWN_FINDINGS = 3
_DRAWN = (plot_content, plot_reuse, plot_times, plot_evidence, plot_bounds)


def _same_cell(verdict: Verdict, report: AuditReport) -> Verdict | None:
    """Return another report's verdict on the same cell; None when it did not look there."""
    cell = (verdict.scope, verdict.channel)
    return next((v for v in report.verdicts if (v.scope, v.channel) == cell), None)


def _shown(value: object) -> object:
    """Return a text of somebody else's without what a browser or a reader would obey."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def make_environment(package: str) -> jinja2.Environment:
    """Return what renders a package's templates: all values escaped and made plain."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        autoescape=True,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


_ENVIRONMENT = make_environment("kvward.audit.report")
_ENVIRONMENT.globals |= {
    "bound_text": bound_text,
    "finding_text": finding_text,
    "outcome_text": outcome_text,
    "finding_ids": finding_ids,
    "same_cell": _same_cell,
    "shown_findings": _SHOWN_FINDINGS,
}


def render_html(reports: Sequence[AuditReport], *, heading: str, introduction: str) -> str:
    """Return one page for one or more audits.

    Args:
        heading: Title of the page.
        introduction: A paragraph on how the audits belong together; may be empty.
    """
    sections = [
        {
            "report": report,
            "started": datetime.fromtimestamp(report.started_unix_s, UTC).strftime(
                "%Y-%m-%d %H:%M:%S UTC"
            ),
            "plots": [plot for draw in _DRAWN if (plot := draw(report)) is not None],
        }
        for report in reports
    ]
    return _ENVIRONMENT.get_template("page.html.j2").render(
        heading=heading, introduction=introduction, sections=sections, version=__version__
    )
