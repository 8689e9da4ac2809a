"""What the linter says, and that it says nothing of the example but what is true of it."""

from __future__ import annotations

from datetime import date

import pytest

from contract_documents import contract_of, example, with_value
from kvward.contract import Severity, lint
from kvward.terms import ClauseId

TODAY = date(2026, 12, 3)
LAPSE = {"clause": "erasure", "what": "Swept by hand.", "until": "2027-01-31"}


def test_example_has_no_remark() -> None:
    assert lint(contract_of(example()), today=TODAY) == []


@pytest.mark.parametrize(
    ("path", "value", "severity", "clause", "words"),
    [
        ("valid_until", "2026-12-02", "error", None, "before it is published"),
        ("tiers.2", "remote", "error", "scope", "remote"),
        ("tiers.1", None, "error", "scope", "not among the tiers"),
        ("clauses.untrusted.tiers.disk", "not-covered", "error", "untrusted", "no tier"),
        ("clauses.lifetime.tiers.device", "enforced", "warning", "lifetime", "engine's own"),
        ("clauses.scope.routes.0.level", "public", "error", "scope", "everybody"),
        ("clauses.scope.routes.0.leading_level", "request", "error", "scope", "narrow"),
        ("clauses.scope.routes.0.leading_level", "public", "error", "scope", "no public prefix"),
        ("clauses.scope.routes.1.route", "chat_completions", "error", "scope", "stands 2 times"),
        ("clauses.scope.dimensions.2", None, "error", "scope", "the key has no conversation"),
        ("clauses.scope.routes", [], "error", "scope", "no route"),
        ("clauses.origin.set_by", "caller", "warning", "origin", "caller chooses"),
        ("clauses.origin.identity", [], "error", "origin", "is known"),
        ("clauses.binding.dimensions.0", None, "warning", "binding", "weights"),
        ("clauses.untrusted.on_bad_state", "serve", "error", "untrusted", "served"),
        ("clauses.failure.on_loss", "share", "error", "failure", "shared more widely"),
        ("clauses.erasure.of", [], "error", "erasure", "erases nothing"),
        ("clauses.metadata.visible.1", "cache-events", "warning", "metadata", "cache-events"),
        ("clauses.metadata.tolerated", [{"channel": "content", "reason": "Rare."}], "error",
         "metadata", "shows in content"),
        ("clauses.evidence", None, "warning", "evidence", "how often"),
        ("clauses.secrecy", None, "warning", "secrecy", "Nothing is promised"),
        ("exceptions", [{**LAPSE, "until": "2026-12-02"}], "error", "erasure", "ended"),
        ("exceptions", [{**LAPSE, "until": "2028-12-03"}], "warning", "erasure", "longer"),
    ],
)  # fmt: skip
def test_fault_is_named_with_its_clause_and_its_mend(
    path: str, value: object, severity: str, clause: str | None, words: str
) -> None:
    remarks = lint(contract_of(with_value(example(), path, value)), today=TODAY)
    found = [one for one in remarks if words in one.message and one.clause == clause]
    assert [(one.severity, one.clause) for one in found] == [
        (Severity(severity), None if clause is None else ClauseId(clause))
    ]
    assert found[0].mend


def test_contract_that_has_ended_is_an_error_on_the_day_after() -> None:
    contract = contract_of(example())
    assert lint(contract, today=contract.valid_until) == []
    (only,) = lint(contract, today=date(2027, 3, 4))
    assert (only.severity, "ended" in only.message) == (Severity.ERROR, True)


def test_exception_from_a_clause_that_is_not_promised_is_an_error() -> None:
    value = with_value(with_value(example(), "exceptions", [LAPSE]), "clauses.erasure", None)
    remarks = lint(contract_of(value), today=TODAY)
    assert remarks[0].severity is Severity.ERROR
    assert "not promised" in remarks[0].message
