"""The report as JUnit XML: one test case for each cell.

A violated cell is a failure. An inconclusive one is an error and not a skipped case: dashboards
show skipped cases as nothing amiss, and a question that was not answered is no reason for calm.
"""

from __future__ import annotations

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from kvward.audit.report.model import AuditReport, cell_id, finding_ids
from kvward.audit.report.plain import plain
from kvward.audit.report.text import bound_text, finding_text, outcome_text
from kvward.audit.verdict import Verdict
from kvward.terms import Outcome

_RESULTS = {Outcome.VIOLATED: Failure, Outcome.INCONCLUSIVE: Error}


def render_junit(report: AuditReport) -> bytes:
    """Return the report as JUnit XML, in UTF-8."""
    suite = TestSuite(plain(report.title))
    for name, value in [
        ("outcome", report.outcome.value),
        ("target", report.plan.url),
        ("model", report.plan.model),
        ("seed", str(report.plan.seed)),
        ("plan_digest", report.plan.digest),
        *(("not_planned", row) for row in report.unplanned),
    ]:
        suite.add_property(name, plain(value))
    # The parts of an audit are not timed one by one; each case gets its share of the requests.
    total = max(1, sum(verdict.run for verdict in report.verdicts))
    for verdict in report.verdicts:
        case = _case(verdict)
        case.time = round(report.duration_s * verdict.run / total, 3)
        suite.add_testcase(case)
    suite.update_statistics()
    document = JUnitXml("kvward audit")
    document.add_testsuite(suite)
    document.update_statistics()
    body: bytes = document.tostring()
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + body


def _case(verdict: Verdict) -> TestCase:
    case = TestCase(
        f"{cell_id(verdict)}: {verdict.scope.meaning}", classname=f"kvward.{verdict.clause}"
    )
    lines = [
        f"{outcome_text(verdict)}: {verdict.reason}",
        f"bound: {bound_text(verdict)}",
        f"requests: {verdict.run} of {verdict.planned} planned, {verdict.failed} failed",
        *(f"{c.name}: {c.seen} of {c.tried}" for c in verdict.controls),
        *(
            f"{name}: {finding_text(finding)}"
            for name, finding in zip(finding_ids(verdict), verdict.findings, strict=True)
        ),
    ]
    told = "\n".join(plain(line) for line in lines)
    kind = _RESULTS.get(verdict.outcome)
    if kind is None:
        case.system_out = told
    else:
        result = kind(plain(verdict.reason), verdict.outcome.value)
        result.text = told
        case.result = [result]
    return case
