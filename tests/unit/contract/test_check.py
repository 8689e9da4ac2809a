"""A contract beside evidence: the four ways a clause can stand, and what decides."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from contract_documents import contract_of, example, with_value
from kvward.contract import ClauseCheck, Standing, check
from kvward.errors import ContractError
from kvward.terms import CacheTier, Channel, ClauseId, Outcome, ProbeScope, StateEnd, VerdictRecord

TODAY = date(2026, 12, 3)
QUIET = VerdictRecord(
    channel=Channel.CONTENT,
    scope=ProbeScope.S3,
    tier=CacheTier.DEVICE,
    outcome=Outcome.NOT_OBSERVED,
    endings=frozenset(),
    bound=0.0002,
    confidence=0.95,
    day=TODAY,
    reason="No foreign word in 10,000 outputs.",
    source="ab" * 32,
)
CONTRACT = contract_of(example())


def row(
    clause: ClauseId, *records: VerdictRecord, tier: CacheTier = CacheTier.DEVICE
) -> ClauseCheck:
    rows = check(CONTRACT, records, today=TODAY)
    (found,) = [one for one in rows if one.clause is clause and one.tier in {tier, None}]
    return found


def test_without_evidence_every_promised_clause_says_that_it_was_not_tested() -> None:
    rows = check(CONTRACT, [], today=TODAY)
    assert {one.clause for one in rows} == {*ClauseId}
    assert {one.standing for one in rows} == {Standing.NOT_TESTED}
    assert all(one.reasons and one.until is None and one.bound is None for one in rows)


def test_clause_is_shown_until_the_evidence_ends_with_its_bound() -> None:
    found = row(ClauseId.SCOPE, QUIET)
    assert found.standing is Standing.SHOWN
    assert found.until == TODAY + timedelta(days=30)
    assert (found.bound, found.within) == (0.0002, True)
    assert found.sources == ("ab" * 32,)
    assert "No foreign word" in found.reasons[0]


def test_bound_that_is_too_large_or_not_sure_enough_is_not_within() -> None:
    assert row(ClauseId.SCOPE, replace(QUIET, bound=0.0004)).within is False
    assert row(ClauseId.SCOPE, replace(QUIET, confidence=0.9)).within is False
    assert row(ClauseId.SCOPE, replace(QUIET, bound=None)).within is False


def test_share_of_times_is_no_rate_of_answers() -> None:
    timing = replace(QUIET, channel=Channel.TIMING, bound=0.3)
    assert row(ClauseId.SCOPE, QUIET, timing).bound == 0.0002
    assert row(ClauseId.SCOPE, timing).within is False


def test_largest_bound_of_the_cells_counts() -> None:
    told = replace(QUIET, channel=Channel.METADATA, bound=0.08)
    found = row(ClauseId.SCOPE, QUIET, told)
    assert (found.bound, found.within, len(found.reasons)) == (0.08, False, 2)


@pytest.mark.parametrize(("age", "standing"), [(30, Standing.SHOWN), (31, Standing.STALE)])
def test_evidence_counts_as_many_days_as_the_contract_says(age: int, standing: Standing) -> None:
    found = row(ClauseId.SCOPE, replace(QUIET, day=TODAY - timedelta(days=age)))
    assert found.standing is standing
    assert found.until == TODAY + timedelta(days=30 - age)


def test_one_old_cell_makes_the_clause_stale() -> None:
    told = replace(QUIET, channel=Channel.METADATA, day=TODAY - timedelta(days=31))
    found = row(ClauseId.SCOPE, QUIET, told)
    assert (found.standing, found.until) == (Standing.STALE, TODAY - timedelta(days=1))


def test_evidence_from_tomorrow_does_not_count() -> None:
    found = row(ClauseId.SCOPE, replace(QUIET, day=TODAY + timedelta(days=1)))
    assert found.standing is Standing.STALE


def test_one_violated_cell_contradicts_whatever_else_was_quiet() -> None:
    broken = replace(QUIET, channel=Channel.TIMING, outcome=Outcome.VIOLATED)
    found = row(ClauseId.SCOPE, QUIET, broken)
    assert found.standing is Standing.CONTRADICTED
    assert found.reasons == ("timing S3 (other tenant): No foreign word in 10,000 outputs.",)


def test_old_violation_counts_until_the_same_cell_is_looked_at_again() -> None:
    broken = replace(QUIET, outcome=Outcome.VIOLATED, day=TODAY - timedelta(days=200))
    assert row(ClauseId.SCOPE, broken).standing is Standing.CONTRADICTED
    assert row(ClauseId.SCOPE, QUIET, broken).standing is Standing.SHOWN
    same_day = replace(broken, day=TODAY)
    assert row(ClauseId.SCOPE, same_day, QUIET).standing is Standing.CONTRADICTED


def test_inconclusive_cell_is_no_test_and_its_reason_is_kept() -> None:
    unclear = replace(QUIET, outcome=Outcome.INCONCLUSIVE, reason="Caching may be off.")
    found = row(ClauseId.SCOPE, unclear)
    assert found.standing is Standing.NOT_TESTED
    assert "Caching may be off." in found.reasons[0]


def test_inconclusive_cell_does_not_clear_an_earlier_violation() -> None:
    broken = replace(QUIET, outcome=Outcome.VIOLATED, day=TODAY - timedelta(days=20))
    unclear = replace(QUIET, outcome=Outcome.INCONCLUSIVE)
    assert row(ClauseId.SCOPE, broken, unclear).standing is Standing.CONTRADICTED
    told = replace(QUIET, channel=Channel.METADATA)
    assert row(ClauseId.SCOPE, broken, unclear, told).standing is Standing.CONTRADICTED


def test_cell_that_nothing_answered_leaves_the_clause_not_tested() -> None:
    unclear = replace(QUIET, channel=Channel.TIMING, outcome=Outcome.INCONCLUSIVE, reason="Noisy.")
    found = row(ClauseId.SCOPE, QUIET, unclear)
    assert found.standing is Standing.NOT_TESTED
    assert found.reasons == ("timing S3 (other tenant): Noisy.",)


def test_inconclusive_cell_does_not_take_away_what_was_shown_before() -> None:
    before = replace(QUIET, day=TODAY - timedelta(days=3))
    unclear = replace(QUIET, outcome=Outcome.INCONCLUSIVE)
    found = row(ClauseId.SCOPE, before, unclear)
    assert (found.standing, found.until) == (Standing.SHOWN, TODAY + timedelta(days=27))


def test_evidence_of_one_tier_says_nothing_of_another() -> None:
    assert row(ClauseId.SCOPE, QUIET, tier=CacheTier.DISK).standing is Standing.NOT_TESTED


def test_clause_that_is_not_promised_in_a_tier_has_no_row_there() -> None:
    rows = check(CONTRACT, [QUIET], today=TODAY)
    places = {(one.clause, one.tier) for one in rows}
    assert (ClauseId.UNTRUSTED, CacheTier.DEVICE) not in places
    assert (ClauseId.UNTRUSTED, CacheTier.DISK) in places


def test_tolerated_channel_neither_contradicts_nor_shows() -> None:
    tolerated = {"channel": "timing", "reason": "Accepted."}
    contract = contract_of(with_value(example(), "clauses.metadata.tolerated", [tolerated]))
    broken = replace(QUIET, channel=Channel.TIMING, outcome=Outcome.VIOLATED)
    rows = check(contract, [broken], today=TODAY)
    assert {one.standing for one in rows} == {Standing.NOT_TESTED}


def test_content_contradicts_though_a_contract_says_that_it_is_tolerated() -> None:
    tolerated = {"channel": "content", "reason": "Accepted."}
    contract = contract_of(with_value(example(), "clauses.metadata.tolerated", [tolerated]))
    rows = check(contract, [replace(QUIET, outcome=Outcome.VIOLATED)], today=TODAY)
    found = {one.clause for one in rows if one.standing is Standing.CONTRADICTED}
    assert found == {ClauseId.SCOPE}


ERASED, EXPIRED = frozenset({StateEnd.ERASURE}), frozenset({StateEnd.LIFETIME})


@pytest.mark.parametrize(
    ("channel", "scope", "endings", "clauses"),
    [
        ("content", "S0", frozenset(), {"binding"}),
        ("differential", "S0", frozenset(), {"binding"}),
        ("metadata", "S0", frozenset(), set()),
        ("content", "S1", frozenset(), {"binding"}),
        ("metadata", "S2", frozenset(), {"scope", "metadata"}),
        ("content", "S3", frozenset(), {"scope"}),
        ("metadata", "S3", frozenset(), {"scope", "metadata"}),
        ("timing", "S4", frozenset(), {"binding"}),
        ("timing", "S5", frozenset(), {"origin"}),
        ("metadata", "S6", ERASED, {"erasure"}),
        ("metadata", "S6", EXPIRED, {"lifetime"}),
        ("timing", "S6", ERASED | EXPIRED, {"erasure", "lifetime"}),
        ("metadata", "S7", frozenset(), {"binding"}),
        ("metadata", "S8", frozenset(), {"interference"}),
    ],
)
def test_violated_cell_contradicts_its_clauses_and_no_others(
    channel: str, scope: str, endings: frozenset[StateEnd], clauses: set[str]
) -> None:
    value = example()
    for clause in value["clauses"]:
        if clause != "evidence":
            value = with_value(value, f"clauses.{clause}.tiers.device", "enforced")
    broken = replace(
        QUIET,
        channel=Channel(channel),
        scope=ProbeScope(scope),
        endings=endings,
        outcome=Outcome.VIOLATED,
    )
    rows = check(contract_of(value), [broken], today=TODAY)
    found = {str(one.clause) for one in rows if one.standing is Standing.CONTRADICTED}
    assert found == clauses


def test_cadence_stands_as_the_worst_tested_clause() -> None:
    assert row(ClauseId.EVIDENCE, QUIET).standing is Standing.NOT_TESTED
    only = example()
    for clause in {*only["clauses"]} - {"scope", "evidence"}:
        only = with_value(only, f"clauses.{clause}", None)
    only = with_value(only, "clauses.scope.tiers.disk", "not-covered")
    contract = contract_of(only)
    (_, cadence) = check(contract, [QUIET], today=TODAY)
    assert (cadence.standing, cadence.until) == (Standing.SHOWN, TODAY + timedelta(days=30))
    old = replace(QUIET, day=TODAY - timedelta(days=40))
    (_, cadence) = check(contract, [old], today=TODAY)
    assert cadence.standing is Standing.STALE


def test_contract_that_does_not_say_how_long_a_test_counts_cannot_be_checked() -> None:
    contract = contract_of(with_value(example(), "clauses.evidence", None))
    with pytest.raises(ContractError, match="how long"):
        check(contract, [QUIET], today=TODAY)
