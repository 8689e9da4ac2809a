"""Every format that a report can be had in, by name, imported when it is asked for."""

from __future__ import annotations

from enum import StrEnum

from kvward.audit.report.html import render_html
from kvward.audit.report.model import AuditReport
from kvward.audit.report.text import render_text
from kvward.errors import ConfigError


class ReportFormat(StrEnum):
    """A format of reports."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    SARIF = "sarif"
    JUNIT = "junit"
    OPENMETRICS = "openmetrics"
    MARKDOWN = "markdown"


def check_format(form: ReportFormat) -> None:
    """Check that what a format needs is installed, before an audit is run for it.

    Raises:
        ConfigError: It is not.
    """
    try:
        if form is ReportFormat.JUNIT:
            import kvward.audit.report.junit
        elif form is ReportFormat.OPENMETRICS:
            import kvward.audit.report.openmetrics  # noqa: F401 - the same
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"The format {form} needs the package {exc.name}, which is not installed.",
            hint="pip install 'kvward[audit,reports]'",
        ) from exc


def render_report(report: AuditReport, form: ReportFormat, *, heading: str) -> bytes:
    """Return a report in a format, in UTF-8.

    Args:
        heading: Title of the page, for a browser.
    Raises:
        ConfigError: What the format needs is not installed.
    """
    check_format(form)
    match form:
        case ReportFormat.TEXT:
            return (render_text(report) + "\n").encode()
        case ReportFormat.JSON:
            return report.to_json()
        case ReportFormat.HTML:
            return render_html([report], heading=heading, introduction="").encode()
        case ReportFormat.SARIF:
            from kvward.audit.report.sarif import render_sarif

            return render_sarif(report)
        case ReportFormat.JUNIT:
            from kvward.audit.report.junit import render_junit

            return render_junit(report)
        case ReportFormat.OPENMETRICS:
            from kvward.audit.report.openmetrics import (
                render_openmetrics,
            )

            return render_openmetrics(report)
        case ReportFormat.MARKDOWN:
            from kvward.audit.report.markdown import (
                render_markdown,
            )

            return render_markdown(report).encode()
