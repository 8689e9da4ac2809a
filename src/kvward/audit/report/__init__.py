"""Reports of audits: for a terminal, for a machine, for a browser."""

from kvward.audit.report.html import render_html
from kvward.audit.report.model import AuditReport
from kvward.audit.report.text import render_text

__all__ = ["AuditReport", "render_html", "render_text"]
