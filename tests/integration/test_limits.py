"""Limits, pace, and what happens to calls that are refused for now."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from audit_histories import clean_history, small_plan
from fakes import FAKES, Fault
from fakes.openai import VLLMFake
from kvward.audit.exchange import Call, Ending
from kvward.audit.history import Arm, HistoryFile, Trial, load_history
from kvward.audit.judge import judge
from kvward.audit.pairs import Pair
from kvward.audit.plan import TIER_SIZES, Plan, Route, Sizes, Tier
from kvward.audit.planning import make_plan
from kvward.audit.run import AuditRun
from kvward.audit.target import (
    NO_LIMITS,
    PRESETS,
    Limits,
    Price,
    Target,
    check_budget,
    planned_spend,
)
from kvward.audit.target import client as client_module
from kvward.audit.target.limits import parse_retry_after
from kvward.errors import BudgetExceededError, ConfigError
from kvward.terms import Channel, ProbeScope, SharingLevel

KEYS = {"a": "ka-secret", "b": "kb-secret"}
NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)


async def nothing_to_change(pair: Pair) -> None:
    raise AssertionError(f"no pair of {pair.scope} needs a change here")


def call(**changes: object) -> Call:
    values = {"tenant": "a", "prompt": "acorn " * 40, "max_tokens": 1, "conversation": "c"}
    return Call(**(values | changes))  # type: ignore[arg-type]


def pairs_plan(*, urls: list[str], pairs: int = 6, routes: tuple[Route, ...] = (Route.CHAT,),
               scopes: tuple[Channel, ...] = (Channel.METADATA,)) -> Plan:  # fmt: skip
    return make_plan(
        url=urls[0], model="fake-1", tenants=["a", "b"], tier=Tier.SMOKE, seed=5,
        channels=scopes, declared_level=SharingLevel.CONVERSATION, clients=2, prompt_tokens=80,
        sizes=Sizes(content_outputs=0, control_outputs=0, pairs=pairs), run_nonce="n",
        routes=routes, replicas=urls if len(urls) > 1 else (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("0", 0.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("nan", None),
        ("inf", None),
        ("1e12", None),
        (format_datetime(NOW + timedelta(seconds=30), usegmt=True), 30.0),
        (format_datetime(NOW - timedelta(seconds=30), usegmt=True), 0.0),
        ("Wed, 99 Foo 2026 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_never_believed_blindly(
    text: str | None, seconds: float | None
) -> None:
    assert parse_retry_after(text, now=NOW) == seconds


async def test_busy_answer_is_waited_for_and_the_call_keeps_its_place() -> None:
    fake = VLLMFake(faults=[Fault.BUSY, Fault.BUSY])
    async with (
        fake.serving() as url,
        Target(url, KEYS, model=None, max_connections=2, preset=PRESETS["vllm"]) as target,
    ):
        began = time.monotonic()
        reply = await target.send(call())
        waited = time.monotonic() - began
        assert reply.ending is Ending.DONE
        assert (reply.num_retries, reply.waited_s) == (2, pytest.approx(0.1))
        assert waited >= 0.1
        assert reply.total_ns < 0.1e9, "the wait is not part of the time that was measured"
        assert len({json.dumps(asked.body) for asked in fake.asked}) == 1
        assert target.spent.requests == len(fake.asked) == 3


async def test_retries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_RETRIES", 2)
    fake = VLLMFake(faults=[Fault.BUSY] * 9)
    async with (
        fake.serving() as url,
        Target(url, KEYS, model=None, max_connections=2, preset=PRESETS["vllm"]) as target,
    ):
        reply = await target.send(call())
    assert (reply.ending, reply.status, reply.num_retries) == (Ending.FAILED, 429, 2)
    assert reply.error == "HTTP 429: slow down"
    assert len(fake.asked) == 3


async def test_call_that_is_to_be_cancelled_is_never_repeated() -> None:
    fake = VLLMFake(faults=[Fault.BUSY] * 3)
    async with (
        fake.serving() as url,
        Target(url, KEYS, model=None, max_connections=2, preset=PRESETS["vllm"]) as target,
    ):
        reply = await target.send(call(cancel_after_s=5.0))
    assert (reply.ending, reply.num_retries) == (Ending.FAILED, 0)
    assert len(fake.asked) == 1


async def test_pace_is_kept_over_all_clients() -> None:
    import asyncio

    fake = VLLMFake()
    limits = Limits(max_rps=40)
    async with (
        fake.serving() as url,
        Target(url, KEYS, model=None, max_connections=8, preset=PRESETS["vllm"], limits=limits)
        as target,
    ):  # fmt: skip
        began = time.monotonic()
        await asyncio.gather(*(target.send(call(prompt=f"p{n}")) for n in range(13)))
        assert time.monotonic() - began >= 12 / 40


async def test_run_stops_sending_at_its_limit_and_what_was_not_sent_has_failed() -> None:
    fake = VLLMFake()
    limits = Limits(max_requests=3)
    async with (
        fake.serving() as url,
        Target(url, KEYS, model=None, max_connections=2, preset=PRESETS["vllm"], limits=limits)
        as target,
    ):  # fmt: skip
        replies = [await target.send(call()) for _ in range(5)]
    assert [r.ending for r in replies] == [Ending.DONE] * 3 + [Ending.FAILED] * 2
    assert replies[-1].error == "not sent: 4 requests, and 3 are allowed"
    assert len(fake.asked) == 3


async def test_tokens_and_money_are_counted_by_what_the_answers_say() -> None:
    fake = VLLMFake()
    limits = Limits(max_cost=1.0, price=Price.parse("1000,2000"))
    async with (
        fake.serving() as url,
        Target(url, KEYS, model=None, max_connections=2, preset=PRESETS["vllm"], limits=limits)
        as target,
    ):  # fmt: skip
        await target.send(call())
        assert target.spent.prompt_tokens == 40
        assert target.spent.completion_tokens == 1
        assert target.spent.cost == pytest.approx(40 * 1e-3 + 2e-3)


def test_plan_beyond_its_limits_is_refused_with_what_would_fit() -> None:
    plan = replace(small_plan(), tier=Tier.NIGHTLY, sizes=TIER_SIZES[Tier.NIGHTLY])
    lab = PRESETS["kvward-lab"]
    smoke = planned_spend(replace(plan, sizes=TIER_SIZES[Tier.SMOKE]), lab, None)
    with pytest.raises(BudgetExceededError, match="requests, and") as caught:
        check_budget(plan, lab, Limits(max_requests=smoke.requests))
    assert caught.value.hint == "--tier smoke fits."
    with pytest.raises(BudgetExceededError) as caught:
        check_budget(plan, lab, Limits(max_requests=smoke.requests - 800))
    assert caught.value.hint == "--tier smoke --channel metadata --channel timing fits."
    with pytest.raises(BudgetExceededError, match=r"up to .* tokens") as caught:
        check_budget(plan, lab, Limits(max_tokens_total=1_000))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("No tier fits. The smallest, smoke, needs")
    with pytest.raises(BudgetExceededError, match=r"up to .* USD, and 0.50 USD"):
        check_budget(plan, lab, Limits(max_cost=0.5, price=Price.parse("10,30")))
    assert check_budget(plan, lab, NO_LIMITS).cost is None


@pytest.mark.parametrize("text", ["", "x", "1,2,3", "-1", "nan", "1;2", "1e9"])
def test_price_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Price.parse(text)


def test_limits_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="above zero"):
        Limits(max_requests=0)
    with pytest.raises(ConfigError, match="--max-cost"):
        Limits(max_cost=1.0)


class Trail:
    """A fake that refuses chosen requests for now."""

    def __init__(self, busy_at: set[int]) -> None:
        self.fake = VLLMFake()
        self.fake.faults.extend(
            Fault.BUSY if n in busy_at else Fault.NONE for n in range(max(busy_at) + 1)
        )


async def test_pair_torn_by_a_retry_keeps_its_arms_and_loses_its_times(tmp_path: Path) -> None:
    """Requests of a pair: 0 primes, 1 and 2 probe. Refused for now: the second probe of the first
    pair (the times are lost), the first probe of the second pair and a priming (they are not)."""
    trail = Trail({2, 5, 8})
    async with (
        trail.fake.serving() as url,
        Target(url, KEYS, model=None, max_connections=2, preset=PRESETS["vllm"]) as target,
    ):
        plan = pairs_plan(urls=[url], scopes=(Channel.METADATA, Channel.TIMING))
        with HistoryFile(tmp_path / "history.jsonl") as history:
            history.write_plan(plan)
            trials = await AuditRun(
                plan, target, history, on_progress=lambda _: None, change=nothing_to_change
            ).run()
            digest = history.digest
    read_plan, read = load_history(tmp_path / "history.jsonl")
    assert (read_plan, read) == (plan, trials)
    retried = [trial for trial in trials if trial.num_retries]
    assert [(trial.arm is Arm.PRIME, trial.first) for trial in retried] == [
        (False, False),
        (False, True),
        (True, None),
    ]
    assert {trial.num_retries for trial in retried} == {1}
    judgement = judge(plan, trials, history_digest=digest)
    assert sum(judgement.dropped_pairs.values()) == 1
    torn = retried[0]
    assert torn.scope is not None
    kept = sum(len(pairs) for pairs in judgement.pairs.values())
    assert kept == len(trials) // 3 - 1
    assert len(judgement.pairs[torn.scope]) == plan.sizes.pairs - 1
    # What was counted stands.
    metadata = [v for v in judgement.verdicts if v.channel is Channel.METADATA]
    assert all(v.run == v.planned for v in metadata)


def test_hit_in_a_torn_pair_is_still_a_hit() -> None:
    plan = small_plan(channels=[Channel.METADATA, Channel.TIMING])

    def leak(trial: Trial) -> Trial:
        if trial.scope is ProbeScope.S3 and trial.pair == 3 and trial.arm is Arm.PROBE_PRIMED:
            return replace(trial, cached_tokens=496, num_retries=2, first=False)
        return trial

    trials = clean_history(plan, change=leak)
    verdicts = judge(plan, trials, history_digest="x").verdicts
    outcomes = {(v.channel, v.scope): v.outcome for v in verdicts}
    assert outcomes[Channel.METADATA, ProbeScope.S3] == "VIOLATED"


async def test_writer_and_reader_are_placed_by_the_seed_and_the_history_names_where(
    tmp_path: Path,
) -> None:
    one, two = VLLMFake(shared=True), VLLMFake(shared=True)
    async with one.serving() as first, two.serving() as second:
        plan = pairs_plan(urls=[first, second], pairs=12, routes=(Route.CHAT, Route.MESSAGES))
        async with Target(
            [first, second], KEYS, model=None, max_connections=4, preset=PRESETS["vllm"]
        ) as target:
            runs = []
            for name in ("x", "y"):
                with HistoryFile(tmp_path / name) as history:
                    runs.append(
                        await AuditRun(
                            plan,
                            target,
                            history,
                            on_progress=lambda _: None,
                            change=nothing_to_change,
                        ).run()
                    )
    places = [[(t.arm, t.scope, t.pair, t.route, t.replica) for t in run] for run in runs]
    assert places[0] == places[1]
    by_pair: dict[tuple[object, object], dict[Arm, Trial]] = {}
    for trial in runs[0]:
        by_pair.setdefault((trial.scope, trial.pair), {})[trial.arm] = trial
    crossed = set()
    for (scope, _), arms in by_pair.items():
        probes = {(arms[a].route, arms[a].replica) for a in (Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED)}
        assert len(probes) == 1, "both probes go to one address by one route"
        assert len({trial.route for trial in arms.values()}) == 1
        if arms[Arm.PRIME].replica != arms[Arm.PROBE_PRIMED].replica:
            crossed.add(scope)
    assert ProbeScope.S0 not in crossed
    assert ProbeScope.S3 in crossed
    assert {trial.route for trial in runs[0]} == {Route.CHAT, Route.MESSAGES}
    assert {trial.replica for trial in runs[0]} == {0, 1}
    # Engines that share find a prompt where it was primed, and only there.
    leaks = [
        (t.replica == by_pair[t.scope, t.pair][Arm.PRIME].replica, bool(t.cached_tokens))
        for t in runs[0]
        if t.scope is ProbeScope.S3 and t.arm is Arm.PROBE_PRIMED
    ]
    assert {same for same, _ in leaks} == {True, False}
    assert all(same is hit for same, hit in leaks)
    judgement = judge(plan, runs[0], history_digest="x")
    findings = [f for v in judgement.verdicts for f in v.findings]
    assert {finding.replica for finding in findings} == {0, 1}


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp", "ollama", "openai", "anthropic"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "isolated"])
async def test_audit_of_a_fake_finds_what_it_shares_and_nothing_else(
    name: str, shared: bool, tmp_path: Path
) -> None:
    fake = FAKES[name](shared=shared)
    async with (
        fake.serving() as url,
        Target(url, KEYS, model=None, max_connections=4) as target,
    ):
        route = next(iter(target.preset.routes))
        plan = replace(
            pairs_plan(urls=[url], pairs=8, routes=(route,)),
            prompt_tokens=max(80, fake.min_cached_words + 80),
        )
        with HistoryFile(tmp_path / "history.jsonl") as history:
            trials = await AuditRun(
                plan, target, history, on_progress=lambda _: None, change=nothing_to_change
            ).run()
    assert not [trial.error for trial in trials if trial.error]
    outcomes = {v.scope: v.outcome for v in judge(plan, trials, history_digest="x").verdicts}
    assert outcomes[ProbeScope.S0] == "NOT_OBSERVED", "the control holds"
    assert outcomes[ProbeScope.S3] == ("VIOLATED" if shared else "NOT_OBSERVED")
    assert outcomes[ProbeScope.S5] == ("VIOLATED" if shared else "NOT_OBSERVED")


async def test_audit_of_a_server_that_reports_no_reuse_is_inconclusive(tmp_path: Path) -> None:
    fake = FAKES["tgi"](shared=True)
    async with fake.serving() as url, Target(url, KEYS, model=None, max_connections=4) as target:
        plan = pairs_plan(urls=[url], pairs=4)
        with HistoryFile(tmp_path / "history.jsonl") as history:
            trials = await AuditRun(
                plan, target, history, on_progress=lambda _: None, change=nothing_to_change
            ).run()
    outcomes = {v.outcome for v in judge(plan, trials, history_digest="x").verdicts}
    assert outcomes == {"INCONCLUSIVE"}
