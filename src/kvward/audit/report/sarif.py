"""The report as SARIF 2.1.0, for services that list what analysers found.

One rule and one result for each cell. A cell that is violated is a failure of level error; one
that is inconclusive is "open", which is what the standard calls too little to decide; the others
are information with their bound. A result's place is the machine-readable report, because the
services want a file, and the cell as a logical one.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from kvward import __version__
from kvward.audit.report.model import AuditReport, cell_id, finding_ids
from kvward.audit.report.plain import plain
from kvward.audit.report.text import bound_text, finding_text, outcome_text
from kvward.audit.verdict import Verdict
from kvward.terms import Outcome

Value = dict[str, Any]  # Any: JSON

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {
    Outcome.VIOLATED: ("fail", "error"),
    Outcome.INCONCLUSIVE: ("open", "none"),
    Outcome.NOT_OBSERVED: ("informational", "none"),
}
_SHOWN_FINDINGS = 3


def render_sarif(report: AuditReport, *, report_uri: str = "report.json") -> bytes:
    """Return the report as SARIF.

    Args:
        report_uri: Where the machine-readable report lies, seen from the results' reader.
    """
    run = {
        "tool": {
            "driver": {
                "name": "kvward audit",
                "semanticVersion": __version__,
                "rules": [_rule(verdict) for verdict in report.verdicts],
            }
        },
        "automationDetails": {"id": f"kvward-audit/{_where(report)}/"},
        "invocations": [{"executionSuccessful": report.outcome is not Outcome.INCONCLUSIVE}],
        "results": [
            _result(verdict, number, report, report_uri)
            for number, verdict in enumerate(report.verdicts)
        ],
        "columnKind": "unicodeCodePoints",
        "properties": {
            "outcome": report.outcome.value,
            "target": plain(report.plan.url),
            "model": plain(report.plan.model),
            "planDigest": report.plan.digest,
            "notPlanned": [plain(row) for row in report.unplanned],
        },
    }
    value = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def _rule(verdict: Verdict) -> Value:
    question = f"{verdict.channel.value}, {verdict.scope.meaning}"
    what = (
        "The positive control: state must be seen here, or the other cells say nothing."
        if verdict.is_control
        else "State of one scope may not be seen from another, within the bound that is stated."
    )
    return {
        "id": cell_id(verdict),
        "name": f"Isolation{verdict.channel.value.title()}{verdict.scope.value}",
        "shortDescription": {"text": f"State that crosses: {question}"},
        "fullDescription": {"text": what},
        "defaultConfiguration": {"level": "error"},
        "help": {"text": "`kvward replay` sends the requests of a finding again."},
        "properties": {"tags": ["cache-isolation", verdict.channel.value]},
    }


def _result(verdict: Verdict, number: int, report: AuditReport, report_uri: str) -> Value:
    kind, level = _LEVELS[verdict.outcome]
    ids = finding_ids(verdict)
    lines = [f"{outcome_text(verdict)}: {verdict.reason} Bound: {bound_text(verdict)}."]
    lines += [
        f"{name}: {finding_text(finding)}"
        for name, finding in zip(ids, verdict.findings[:_SHOWN_FINDINGS], strict=False)
    ]
    if len(ids) > _SHOWN_FINDINGS:
        lines.append(f"{len(ids) - _SHOWN_FINDINGS} more are in the machine-readable report.")
    return {
        "ruleId": cell_id(verdict),
        "ruleIndex": number,
        "kind": kind,
        "level": level,
        "message": {"text": "\n".join(_message(line) for line in lines)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": report_uri},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [
                    {"name": cell_id(verdict), "fullyQualifiedName": _cell_name(verdict)}
                ],
            }
        ],
        "partialFingerprints": {"cell/v1": _fingerprint(verdict, report)},
        "properties": {
            "findings": list(ids),
            "planned": verdict.planned,
            "run": verdict.run,
            "failed": verdict.failed,
            "events": verdict.events,
            "bound": verdict.bound,
            "boundKind": verdict.bound_kind,
            "confidence": verdict.confidence,
            "sensitivity": verdict.sensitivity,
            "planDigest": verdict.plan_digest,
            "historyDigest": verdict.history_digest,
        },
    }


def _message(text: str) -> str:
    """Return a message's line; brackets would begin a link there, and backslashes escape."""
    shown = plain(text)
    for sign in ("\\", "[", "]"):
        shown = shown.replace(sign, "\\" + sign)
    return shown


def _where(report: AuditReport) -> str:
    """Return a name for the target that is the same in every run and holds none of its signs."""
    return hashlib.sha256(report.plan.url.encode("utf-8", "replace")).hexdigest()[:16]


def _cell_name(verdict: Verdict) -> str:
    return f"{verdict.clause}/{verdict.channel.value}/{verdict.scope.value}/{verdict.tier.value}"


def _fingerprint(verdict: Verdict, report: AuditReport) -> str:
    """Return what makes the same cell of the same target one alert over many nights."""
    return hashlib.sha256(f"{_where(report)} {_cell_name(verdict)}".encode()).hexdigest()
