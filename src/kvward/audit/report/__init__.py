"""Reports of audits: for a terminal, a machine, a browser, and what jobs of every night read."""

from kvward.audit.report.formats import ReportFormat, check_format, render_report
from kvward.audit.report.html import render_html
from kvward.audit.report.model import AuditReport
from kvward.audit.report.text import render_text

__all__ = [
    "AuditReport",
    "ReportFormat",
    "check_format",
    "render_html",
    "render_report",
    "render_text",
]
