"""Statements: what in-toto's readers find in them, and what they leave out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvward.ledger.statement import (
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    AuditFacts,
    CellVerdict,
    make_statement,
)
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope


def cell(channel: Channel, scope: ProbeScope, outcome: Outcome) -> CellVerdict:
    return CellVerdict(channel, scope, outcome, CacheTier.DEVICE, None, None)


FACTS = AuditFacts(
    report_digest="1" * 64,
    history_digest="2" * 64,
    plan_digest="3" * 64,
    target_digest="4" * 64,
    contract_digest=None,
    tool_version="0.1.0",
    cells=[
        cell(Channel.METADATA, ProbeScope.S0, Outcome.NOT_OBSERVED),
        cell(Channel.METADATA, ProbeScope.S3, Outcome.VIOLATED),
        cell(Channel.TIMING, ProbeScope.S3, Outcome.INCONCLUSIVE),
    ],
)


def test_statement_names_files_by_digest_and_cells_by_name() -> None:
    value = json.loads(make_statement(FACTS))
    assert (value["_type"], value["predicateType"]) == (STATEMENT_TYPE, PREDICATE_TYPE)
    assert {s["name"]: s["digest"]["sha256"][0] for s in value["subject"]} == {
        "report.json": "1", "history.jsonl": "2", "plan.json": "3", "target": "4",
    }  # fmt: skip
    predicate = value["predicate"]
    assert predicate["result"] == "FAILED"
    assert predicate["passedTests"] == ["metadata S0"]
    assert predicate["failedTests"] == ["metadata S3"]
    assert predicate["warnedTests"] == ["timing S3"]
    # in-toto asks that a resource has one of these.
    for resource in [*value["subject"], *predicate["configuration"]]:
        assert {"uri", "digest", "content"} & set(resource)


def test_contract_is_a_subject_where_there_is_one() -> None:
    value = json.loads(make_statement(replace(FACTS, contract_digest="5" * 64)))
    assert value["subject"][-1] == {"name": "contract.json", "digest": {"sha256": "5" * 64}}


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (Outcome.NOT_OBSERVED, "PASSED"),
        (Outcome.INCONCLUSIVE, "WARNED"),
        (Outcome.VIOLATED, "FAILED"),
    ],
)
def test_results_are_those_of_in_toto(outcome: Outcome, result: str) -> None:
    cells = [cell(Channel.CONTENT, ProbeScope.S3, outcome)]
    assert json.loads(make_statement(replace(FACTS, cells=cells)))["predicate"]["result"] == result


def test_nothing_tested_is_a_warning() -> None:
    assert json.loads(make_statement(replace(FACTS, cells=[])))["predicate"]["result"] == "WARNED"
