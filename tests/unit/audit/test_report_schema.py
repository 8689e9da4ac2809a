"""The machine-readable report against its published schema, both ways."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from audit_reports import REPORTS, clean_report, leaking_report
from kvward.audit.report.model import finding_ids

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs/spec/audit-report-v1.schema.json").read_text()
)
VALIDATOR = Draft202012Validator(SCHEMA)
Value = dict[str, Any]


def test_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", REPORTS)
def test_reports_are_as_the_schema_says(name: str) -> None:
    VALIDATOR.validate(json.loads(REPORTS[name]().to_json()))


def verdict_of(value: Value, cell: str) -> Value:
    return next(v for v in value["verdicts"] if f"{v['channel']}-{v['scope']}" == cell)


DAMAGES: dict[str, Callable[[Value], object]] = {
    "no format": lambda v: v.pop("format"),
    "another format": lambda v: v.update(format="kvward audit report 2"),
    "an extra field": lambda v: v.update(key="secret"),
    "no plan": lambda v: v.pop("plan"),
    "another outcome": lambda v: v.update(outcome="PASSED"),
    "an outcome stronger than its cells": lambda v: v.update(outcome="VIOLATED"),
    "no verdict at all": lambda v: v.update(verdicts=[]),
    "a weaker cell": lambda v: v["verdicts"][0].update(outcome="INCONCLUSIVE"),
    "a stronger cell": lambda v: v["verdicts"][0].update(outcome="VIOLATED"),
    "a verdict without bound": lambda v: v["verdicts"][0].update(bound=None),
    "a bound above one": lambda v: v["verdicts"][0].update(bound=1.5),
    "a bound as text": lambda v: v["verdicts"][0].update(bound="0.01"),
    "events where none were observed": lambda v: v["verdicts"][0].update(events=1),
    "nothing run": lambda v: v["verdicts"][0].update(run=0),
    "fewer than no trials": lambda v: v["verdicts"][0].update(failed=-1),
    "no controls": lambda v: v["verdicts"][0].pop("controls"),
    "a control without word": lambda v: v["verdicts"][0]["controls"][0].pop("held"),
    "a short digest": lambda v: v.update(plan_digest="f" * 63),
    "one tenant": lambda v: v["plan"].update(tenants=["a"]),
    "an unknown channel": lambda v: v["plan"]["cells"][0].update(channel="smell"),
    "a field of a plan too many": lambda v: v["plan"].update(keys={"a": "secret"}),
    "a seed that is none": lambda v: v["plan"].update(seed=-1),
    "a finding that has no verdict": lambda v: v["verdicts"][0].update(findings=[{"trial": 1}]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_report_is_refused(name: str) -> None:
    value = json.loads(clean_report().to_json())
    VALIDATOR.validate(value)
    damaged = copy.deepcopy(value)
    DAMAGES[name](damaged)
    assert damaged != value
    assert not VALIDATOR.is_valid(damaged)


def test_finding_without_its_id_and_hidden_violation_are_refused() -> None:
    value = json.loads(leaking_report().to_json())
    hidden = copy.deepcopy(value)
    hidden["outcome"] = "INCONCLUSIVE"
    assert not VALIDATOR.is_valid(hidden)
    del verdict_of(value, "content-S3")["findings"][0]["id"]
    assert not VALIDATOR.is_valid(value)


def test_findings_have_names_of_their_own() -> None:
    value = json.loads(leaking_report().to_json())
    names = [f["id"] for v in value["verdicts"] for f in v["findings"]]
    assert len(names) == len(set(names)) > 10
    assert names[0].startswith("content-S3-")
    # Two findings of one trial, as when words of two sessions were shown.
    verdict = next(v for v in leaking_report().verdicts if v.findings)
    first = verdict.findings[0]
    twice = replace(verdict, findings=(first, first))
    assert finding_ids(twice) == (f"content-S3-{first.trial}", f"content-S3-{first.trial}-2")
