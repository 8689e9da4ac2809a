"""What is sent again for a finding, from a report that may have been tampered with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from audit_histories import clean_history
from audit_reports import PLAN, leaking, report_of
from kvward.audit.exchange import Call
from kvward.audit.history import Arm
from kvward.audit.pairs import iter_pairs
from kvward.audit.placement import Placement
from kvward.audit.plan import Cell, Plan, Route
from kvward.audit.replay import (
    Recorded,
    Replay,
    find_subject,
    parse_report,
    plan_replay,
)
from kvward.errors import ConfigError, ReportError
from kvward.terms import Channel, ProbeScope

REPLICAS = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")
WIDE = replace(PLAN, replicas=REPLICAS, routes=(Route.COMPLETIONS, Route.CHAT), run_nonce="old")


def value(plan: Any = PLAN) -> dict[str, Any]:
    trials = clean_history(PLAN, change=leaking)
    return json.loads(replace(report_of(trials), plan=plan).to_json())


LEAKING = value()


def recorded(plan: Any = PLAN) -> Recorded:
    return parse_report(json.dumps(LEAKING if plan is PLAN else value(plan)).encode())


def first_id(report: Recorded, cell: str) -> str:
    return next(f.id for v in report.verdicts for f in v.findings if f.id.startswith(cell))


def planned(report: Recorded, name: str, *, repeats: int = 12, **other: Any) -> Replay:
    given = {"addresses": report.addresses, "model": "m", "preset": "", "preset_reason": ""}
    return plan_replay(
        report, find_subject(report, name), run_nonce="new", repeats=repeats, **(given | other)
    )


def test_pair_is_sent_again_with_controls_and_fresh_prompts() -> None:
    report = recorded()
    name = first_id(report, "metadata-S3")
    reader = find_subject(report, name).finding.reader  # type: ignore[union-attr]
    again = planned(report, name)
    assert again.pairs is not None
    probes = [pair for pair in again.pairs if pair.scope is ProbeScope.S3]
    controls = [pair for pair in again.pairs if pair.scope is ProbeScope.S0]
    assert len(probes) == len(controls) == again.plan.sizes.pairs == 12
    assert {p.reader for p in again.pairs} == {reader.split("/")[0]}
    assert all(pair.writer != pair.reader for pair in probes)
    assert all(pair.writer == pair.reader for pair in controls)
    assert {pair.coin for pair in again.pairs} == {pair.first for pair in again.pairs} == {1, 2}
    cells = {(cell.channel, cell.scope) for cell in again.plan.cells}
    assert cells == {(Channel.METADATA, ProbeScope.S0), (Channel.METADATA, ProbeScope.S3)}
    assert not again.plan.has_content
    recipes = [prompt.recipe for pair in again.pairs for prompt in pair.prompts]
    assert len(set(recipes)) == len(recipes) == 48
    assert all(len(prompt.words) == 512 for pair in again.pairs for prompt in pair.prompts)
    old = {prompt.words for pair in iter_pairs(PLAN) for prompt in pair.prompts}
    assert not old & {prompt.words for pair in again.pairs for prompt in pair.prompts}


@pytest.mark.parametrize("cell", ["metadata-S3"])
def test_pair_goes_where_it_went_before(cell: str) -> None:
    report = recorded(WIDE)
    name = first_id(report, cell)
    number = int(find_subject(report, name).finding.reader.rpartition("-")[2])  # type: ignore[union-attr]
    again = planned(report, name)
    assert again.pairs is not None
    old = next(
        pair for pair in iter_pairs(WIDE) if pair.number == number and pair.scope is ProbeScope.S3
    )
    call = Call(tenant="a", prompt="", max_tokens=1, conversation=None)

    def place(plan: Any, pair: Any, arm: Arm) -> tuple[Route, int]:
        placed = Placement(plan).of_pair(call, pair, arm)
        return placed.route, placed.replica

    for pair in again.pairs:
        assert pair.number % 2 == number % 2
        for arm in (Arm.PRIME, Arm.PROBE_PRIMED):
            kind = arm if pair.scope is ProbeScope.S3 else Arm.PROBE_PRIMED
            assert place(again.plan, pair, arm) == place(WIDE, old, kind)


def test_finding_under_load_and_cell_are_sent_again_as_planned() -> None:
    report = recorded()
    again = planned(report, first_id(report, "content-S3"))
    assert again.pairs is None
    assert (again.plan.seed, again.plan.sizes) == (PLAN.seed, PLAN.sizes)
    assert {cell.channel for cell in again.plan.cells} == {
        Channel.CONTENT,
        Channel.DIFFERENTIAL,
    }
    whole = planned(report, "timing-S5")
    assert whole.pairs is None
    assert {cell.scope for cell in whole.plan.cells} == {ProbeScope.S0, ProbeScope.S5}
    assert {cell.channel for cell in whole.plan.cells} == {Channel.TIMING}


def test_count_that_was_odd_under_load_is_sent_again_with_the_load() -> None:
    changed = json.loads(json.dumps(LEAKING))
    for verdict in changed["verdicts"]:
        if (verdict["channel"], verdict["scope"]) == ("metadata", "S3"):
            verdict["findings"][0]["reader"] = "b/c3"
    report = parse_report(json.dumps(changed).encode())
    again = planned(report, first_id(report, "metadata-S3"))
    assert again.pairs is None
    assert again.plan.has_content
    assert set(again.plan.pair_scopes) == {ProbeScope.S0, ProbeScope.S3}


def flooded_report(plan: Plan) -> Recorded:
    """A report with one loss after a flood; only its first scope's pairs were leaking."""
    changed = value(plan)
    cell = next(v for v in changed["verdicts"] if v["findings"] and v["channel"] == "metadata")
    lost = {**cell["findings"][0], "id": "metadata-S8-7", "reader": "b/s8-6", "source": None}
    changed["verdicts"].append({**cell, "scope": "S8", "findings": [lost]})
    return parse_report(json.dumps(changed).encode())


FLOODED = replace(
    PLAN,
    cells=(*PLAN.cells, Cell(scope=ProbeScope.S8, channel=Channel.METADATA, reuse_expected=True)),
    protected_tokens=400,
    protected_words=320,
    flood_tokens=900,
)


def test_flood_is_sent_again_with_its_sizes_and_controls() -> None:
    again = planned(flooded_report(FLOODED), "metadata-S8-7")
    assert again.pairs is not None
    old = next(p for p in iter_pairs(FLOODED) if (p.scope, p.number) == (ProbeScope.S8, 6))
    floods = [pair for pair in again.pairs if pair.scope is ProbeScope.S8]
    controls = [pair for pair in again.pairs if pair.scope is ProbeScope.S0]
    assert len(floods) == len(controls) == 12
    assert {(p.writer, p.reader, p.flooder) for p in floods} == {
        (old.writer, old.reader, old.flooder)
    }
    assert {len(prompt.words) for pair in floods for prompt in pair.prompts} == {320}
    assert {len(prompt.words) for pair in controls for prompt in pair.prompts} == {512}
    assert again.plan.num_flood_prompts == FLOODED.num_flood_prompts == 3
    assert {cell.scope for cell in again.plan.cells} == {ProbeScope.S0, ProbeScope.S8}


@pytest.mark.parametrize(
    "changes",
    [
        {"protected_tokens": None},
        {"protected_words": 0},
        {"protected_words": 10**9},
        {"flood_tokens": 10**15},
        {"flood_tokens": -1},
    ],
)
def test_flood_that_no_audit_plans_is_not_sent(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        planned(flooded_report(replace(FLOODED, **changes)), "metadata-S8-7")


def test_saved_state_is_brought_again_and_not_in_the_controls() -> None:
    plan = replace(PLAN, saves_state=True)
    changed = value(plan)
    cell = next(v for v in changed["verdicts"] if (v["channel"], v["scope"]) == ("metadata", "S5"))
    other = next(f for v in changed["verdicts"] for f in v["findings"])
    cell["findings"] = [{**other, "id": "metadata-S5-9", "reader": "b/s5-7", "source": "a/s5-7"}]
    again = planned(parse_report(json.dumps(changed).encode()), "metadata-S5-9")
    assert again.plan.saves_state
    assert again.pairs is not None
    assert {(p.scope, p.restores) for p in again.pairs} == {
        (ProbeScope.S5, True),
        (ProbeScope.S0, False),
    }
    assert all(p.number % 4 == 3 for p in again.pairs)


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v.update(format="kvward audit report 2"),
        lambda v: v["plan"].update(url="http://192.0.2.1"),
        lambda v: v["plan"].update(seed=8),
        lambda v: v.update(plan_digest="0" * 64),
        lambda v: v.pop("verdicts"),
        lambda v: v["plan"].update(tenants="ab"),
        lambda v: v["verdicts"][0].update(channel="smell"),
    ],
)
def test_report_that_was_changed_is_refused(damage: Any) -> None:
    changed = json.loads(json.dumps(LEAKING))
    damage(changed)
    with pytest.raises(ReportError):
        parse_report(json.dumps(changed).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(ReportError):
        parse_report(data)


@pytest.mark.parametrize("reader", ["b/s3-999999", "b/s2-1", "b/x", "", "b/s3-1-else"])
def test_finding_of_no_pair_of_the_plan_is_refused(reader: str) -> None:
    changed = json.loads(json.dumps(LEAKING))
    for verdict in changed["verdicts"]:
        if (verdict["channel"], verdict["scope"]) == ("metadata", "S3"):
            verdict["findings"][0]["reader"] = reader
    report = parse_report(json.dumps(changed).encode())
    with pytest.raises(ConfigError):
        planned(report, first_id(report, "metadata-S3"))


def test_unknown_name_and_other_number_of_addresses_are_refused() -> None:
    report = recorded()
    with pytest.raises(ConfigError) as caught:
        find_subject(report, "metadata-S3-999999")
    assert "metadata-S3-" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="1 addresses, and 3"):
        planned(report, first_id(report, "metadata-S3"), addresses=REPLICAS)


def test_plan_of_no_bound_is_refused() -> None:
    huge = replace(PLAN, sizes=replace(PLAN.sizes, pairs=10**9))
    report = recorded(huge)
    with pytest.raises(ConfigError, match="larger"):
        planned(report, first_id(report, "metadata-S3"))
