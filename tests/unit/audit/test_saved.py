"""Saved states: who brings them, when, and what is kept and made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from audit_histories import clean_history, small_plan
from kvward.audit.exchange import Call, Ending, Reply
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.pairs import Pair, claimed_salt, iter_pairs, run_pair
from kvward.audit.placement import Placement
from kvward.audit.plan import Plan, Route
from kvward.audit.saved import StateCarrier
from kvward.audit.target import PRESETS
from kvward.audit.target.side import SavedState, SideAnswer, SideRequest
from kvward.audit.verdict import Verdict
from kvward.terms import Channel, Outcome, ProbeScope

PLAN = replace(small_plan(channels=[Channel.METADATA]), saves_state=True, run_nonce="run")
PAIRS = [pair for pair in iter_pairs(PLAN) if pair.scope is ProbeScope.S5]
RESTORING = next(pair for pair in PAIRS if pair.number == 3)
LAB, LLAMACPP = (PRESETS[name].saved_state for name in ("kvward-lab", "llamacpp"))
STATE = "c2VjcmV0IHN0YXRl"


class FakeTarget:
    """Answers what it is told to, and remembers the order of everything."""

    def __init__(self, answer: Callable[[SideRequest], tuple[int, bytes]]) -> None:
        self._answer = answer
        self.asked: list[tuple[str, SideRequest, int]] = []
        self.order: list[str] = []

    async def ask(
        self, tenant: str, request: SideRequest, *, conversation: str, replica: int = 0
    ) -> SideAnswer:
        self.asked.append((tenant, request, replica))
        action = (request.body or {}).get("action") or request.path.partition("=")[2]
        self.order.append(action)
        status, body = self._answer(request)
        return SideAnswer(status=status, start_ns=0, total_ns=1, body=body, error=None)


def saves(request: SideRequest) -> tuple[int, bytes]:
    return 200, json.dumps({"state": STATE}).encode()


def refuses(status: int) -> Callable[[SideRequest], tuple[int, bytes]]:
    return lambda _: (status, b"")


def carry(
    answer: Callable[[SideRequest], tuple[int, bytes]],
    *,
    saved: SavedState | None = LAB,
    pair: Pair = RESTORING,
    hint: str | None = None,
    plan: Plan = PLAN,
) -> tuple[FakeTarget, list[Trial], list[Call]]:
    target, trials, calls = FakeTarget(answer), [], []

    async def run() -> None:
        carrier = StateCarrier(plan, saved, target, trials.append, placement=Placement(plan))
        await carrier.open()

        async def send(pair: Pair, arm: Arm, which: int, conversation: str, call: Call) -> Reply:
            calls.append(carrier.pinned(call, pair, arm))
            target.order.append(arm.value)
            return Reply(
                ending=Ending.DONE, status=200, start_ns=0, ttft_ns=1, total_ns=1, scope_hint=hint
            )

        async def between(pair: Pair, hint: str | None) -> None:
            await carrier.carry(pair, hint=hint)

        await run_pair(pair, send, between=between)

    asyncio.run(run())
    return target, trials, calls


def test_kinds_of_forgery_alternate_with_and_without_a_saved_state() -> None:
    assert [p.restores for p in sorted(PAIRS, key=lambda p: p.number)][:8] == [
        False, False, True, True, False, False, True, True,
    ]  # fmt: skip
    assert not any(p.restores for p in iter_pairs(PLAN) if p.scope is not ProbeScope.S5)
    assert not any(p.restores for p in iter_pairs(replace(PLAN, saves_state=False)))


def test_pairs_are_otherwise_the_same_as_without() -> None:
    without = list(iter_pairs(replace(PLAN, saves_state=False)))
    assert [replace(pair, restores=False) for pair in iter_pairs(PLAN)] == without


def test_state_is_saved_after_priming_and_put_back_before_both_probes() -> None:
    target, trials, calls = carry(saves)
    probes = {"probe-primed", "probe-unprimed"}
    assert target.order[:4] == ["save", "prime", "save", "restore"]
    assert set(target.order[4:]) == probes
    tenants = [tenant for tenant, *_ in target.asked]
    assert tenants == [PLAN.tenants[0], RESTORING.writer, RESTORING.reader]
    _, restore, _ = target.asked[-1]
    assert restore.body is not None
    assert restore.body["state"] == STATE
    assert restore.body["cache_salt"] == RESTORING.forged_salt
    assert calls[0].extra_body == {"id_slot": 0}
    assert [call.extra_body for call in calls[1:]] == [{}, {}]
    assert [(t.arm, t.pair, t.scope) for t in trials[1:]] == [
        (Arm.SAVE, 3, ProbeScope.S5),
        (Arm.RESTORE, 3, ProbeScope.S5),
    ]
    assert STATE not in repr(trials)


def test_state_is_put_back_under_the_scope_that_the_probes_claim() -> None:
    target, _, calls = carry(saves, hint="disclosed")
    restore = target.asked[-1][1].body
    assert restore is not None
    assert calls[-1].forged is not None
    assert restore["cache_salt"] == calls[-1].forged.salt == "disclosed"
    assert claimed_salt(RESTORING, None) == RESTORING.forged_salt


def test_server_that_keeps_states_by_name_is_given_one_name_for_the_whole_audit() -> None:
    target, _, _ = carry(lambda _: (200, b"{}"), saved=LLAMACPP)
    assert {request.path for _, request, _ in target.asked} == {
        "/slots/0?action=save",
        "/slots/0?action=restore",
    }
    assert {str(request.body) for _, request, _ in target.asked} == {
        "{'filename': 'kvward-audit-run.bin'}"
    }


@pytest.mark.parametrize("status", [400, 403, 404, 500, 501])
def test_server_that_saves_nothing_is_asked_once_and_no_prompt_names_a_slot(status: int) -> None:
    target, trials, calls = carry(refuses(status))
    assert len(target.asked) == len(trials) == 1
    assert all(call.extra_body == {} for call in calls)
    assert len(calls) == 3


@pytest.mark.parametrize("body", [b'{"state": null}', b"{}", b"nothing", b'{"state": ""}'])
def test_empty_slot_is_not_put_back(body: bytes) -> None:
    target, _, calls = carry(lambda _: (200, body))
    assert "restore" not in target.order
    assert len(calls) == 3


def test_pairs_without_a_saved_state_ask_for_none() -> None:
    usual = next(pair for pair in PAIRS if not pair.restores)
    target, _, calls = carry(saves, pair=usual)
    assert len(target.asked) == 1
    assert all(call.extra_body == {} for call in calls)


def test_routes_without_a_slot_are_left_alone() -> None:
    assert LAB is not None
    assert Route.COMPLETIONS in LAB.pin
    _, _, calls = carry(saves, saved=replace(LAB, pin={}))
    assert all(call.extra_body == {} for call in calls)


# What the judge makes of it.


def restore_trial(pair: int, number: int, *, arm: Arm = Arm.RESTORE, status: int = 200) -> Trial:
    base = next(t for t in clean_history(PLAN) if t.scope is ProbeScope.S5)
    return replace(base, number=number, arm=arm, pair=pair, status=status, cached_tokens=None)


def verdict_of(trials: list[Trial]) -> Verdict:
    judged = judge(PLAN, trials, history_digest="h")
    return next(v for v in judged.verdicts if v.scope is ProbeScope.S5)


def reuse_after_restore(trial: Trial) -> Trial:
    hit = trial.scope is ProbeScope.S5 and trial.arm is Arm.PROBE_PRIMED and trial.pair == 3
    return replace(trial, cached_tokens=496) if hit else trial


def test_reuse_after_a_restored_state_is_a_finding_that_says_so() -> None:
    trials = clean_history(PLAN, change=reuse_after_restore)
    verdict = verdict_of([*trials, restore_trial(3, len(trials))])
    assert verdict.outcome is Outcome.VIOLATED
    (finding,) = verdict.findings
    assert finding.note is not None
    assert "saved state" in finding.note
    (alone,) = verdict_of(trials).findings
    assert alone.note is None


def test_refused_states_leave_the_cell_as_it_was() -> None:
    clean = clean_history(PLAN)
    before = verdict_of(clean)
    extra: list[Any] = []
    for pair in range(2, 40, 4):
        for arm, status in ((Arm.SAVE, 200), (Arm.RESTORE, 400)):
            extra.append(restore_trial(pair, len(clean) + len(extra), arm=arm, status=status))
    after = verdict_of([*clean, *extra])
    assert after.outcome is before.outcome is Outcome.NOT_OBSERVED
    assert (after.planned, after.run, after.bound) == (before.planned, before.run, before.bound)
    assert [(c.seen, c.tried) for c in after.controls[1:]] == [(10, 10)]
