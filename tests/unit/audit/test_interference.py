"""Own state after a flood: what counts as lost, what cannot be told, and how it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from audit_histories import clean_history, small_plan
from kvward.audit.decide import judge_interference
from kvward.audit.detectors.interference import (
    FloodedPair,
    InterferenceReading,
    loss_probability,
    read_floods,
)
from kvward.audit.detectors.metadata import MetadataReading
from kvward.audit.exchange import Call, Ending, Reply
from kvward.audit.flood import Flood, fitting_words
from kvward.audit.history import SIDE_ARMS, Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.pairs import Pair, iter_pairs, run_pair
from kvward.audit.plan import Cell, Plan
from kvward.audit.planning import make_plan
from kvward.audit.prompts import Prompt
from kvward.audit.target import PRESETS
from kvward.audit.verdict import Stamp, Trials, Verdict
from kvward.cli.flooding import choose_floods
from kvward.errors import ConfigError
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope

S8 = Cell(scope=ProbeScope.S8, channel=Channel.METADATA, reuse_expected=True)
SMALL = small_plan(channels=[Channel.METADATA])
PLAN = replace(
    SMALL,
    cells=(*SMALL.cells, S8),
    protected_tokens=600,
    protected_words=512,
    flood_tokens=1_500,
    run_nonce="run",
)
LOSS = Callable[[Trial], Trial | None]


def flooded_history(plan: Plan = PLAN, *, change: LOSS = lambda trial: trial) -> list[Trial]:
    """A clean history in which own state outlives every flood, passed through `change`."""
    trials: list[Trial] = []

    def add(trial: Trial) -> None:
        changed = change(replace(trial, number=len(trials)))
        if changed is not None:
            trials.append(changed)

    for trial in clean_history(plan):
        if trial.scope is not ProbeScope.S8:
            add(trial)
        elif trial.arm is Arm.PRIME:
            add(trial)
            add(replace(trial, arm=Arm.PRIME_AGAIN, cached_tokens=496))
            for _ in range(plan.num_flood_prompts):
                add(replace(trial, arm=Arm.FLOOD, tenant="b"))
        else:
            primed = trial.arm is Arm.PROBE_PRIMED
            add(replace(trial, cached_tokens=496 if primed else 0))
            if not primed:
                add(replace(trial, arm=Arm.FLOOD_AGAIN, tenant="b", cached_tokens=0))
    return trials


def verdicts(trials: list[Trial], plan: Plan = PLAN) -> dict[ProbeScope, Verdict]:
    return {v.scope: v for v in judge(plan, trials, history_digest="h").verdicts}


def lose(*pairs: int, to: int = 0) -> LOSS:
    def change(trial: Trial) -> Trial:
        is_lost = trial.scope is ProbeScope.S8 and trial.pair in pairs
        if is_lost and trial.arm is Arm.PROBE_PRIMED:
            return replace(trial, cached_tokens=to)
        return trial

    return change


def of_s8(arm: Arm, **changes: object) -> LOSS:
    def change(trial: Trial) -> Trial:
        hit = trial.scope is ProbeScope.S8 and trial.arm is arm
        return replace(trial, **changes) if hit else trial  # type: ignore[arg-type]

    return change


def test_state_that_stays_is_a_bound() -> None:
    found = verdicts(flooded_history())
    assert {v.outcome for v in found.values()} == {Outcome.NOT_OBSERVED}
    verdict = found[ProbeScope.S8]
    assert (verdict.planned, verdict.run, verdict.events) == (120, 120, 0)
    assert verdict.clause == "interference"
    assert not verdict.is_control
    assert verdict.bound == pytest.approx((1 - 0.05 ** (1 / 40)) / 0.05 ** (1 / 40))
    assert all(control.held for control in verdict.controls)


def test_state_that_is_gone_after_floods_is_violated_and_nothing_else_is() -> None:
    found = verdicts(flooded_history(change=lose(*range(40))))
    assert [scope for scope, v in found.items() if v.outcome is Outcome.VIOLATED] == [ProbeScope.S8]
    verdict = found[ProbeScope.S8]
    assert verdict.events == len(verdict.findings) == 40
    finding = verdict.findings[0]
    assert finding.note is not None
    assert "flood" in finding.note
    assert finding.source is None
    assert finding.cached_tokens == 0


@pytest.mark.parametrize(("left", "lost"), [(0, True), (240, True), (250, False), (480, False)])
def test_state_is_lost_when_less_than_half_of_it_is_left(left: int, lost: bool) -> None:
    verdict = verdicts(flooded_history(change=lose(*range(40), to=left)))[ProbeScope.S8]
    assert verdict.outcome is (Outcome.VIOLATED if lost else Outcome.NOT_OBSERVED)


def test_single_losses_may_be_chance_and_are_neither_alarm_nor_all_clear() -> None:
    verdict = verdicts(flooded_history(change=lose(3, 7)))[ProbeScope.S8]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "2 of 40" in verdict.reason
    assert verdict.findings == ()


def without_control(trial: Trial) -> Trial:
    if trial.scope is ProbeScope.S0:
        return replace(trial, cached_tokens=0)
    return lose(*range(40))(trial)  # type: ignore[return-value]


def test_losses_say_nothing_where_reuse_is_not_seen_anyway() -> None:
    verdict = verdicts(flooded_history(change=without_control))[ProbeScope.S8]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "Positive control" in verdict.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_s8(Arm.FLOOD, ending=Ending.FAILED), "floods failed"),
        (of_s8(Arm.FLOOD_AGAIN, cached_tokens=496), "--flood-tokens"),
        (of_s8(Arm.FLOOD_AGAIN, ending=Ending.FAILED), "--flood-tokens"),
        (of_s8(Arm.PRIME_AGAIN, cached_tokens=0), "before the flood"),
        (of_s8(Arm.PRIME_AGAIN, cached_tokens=None), "did not report"),
        (of_s8(Arm.PROBE_PRIMED, cached_tokens=None), "did not report"),
        (of_s8(Arm.PROBE_UNPRIMED, cached_tokens=496), "would not show"),
        (of_s8(Arm.PROBE_PRIMED, ending=Ending.FAILED), "failed"),
        (of_s8(Arm.PRIME, prompt_tokens=600), "larger than the 600"),
    ],
)
def test_what_keeps_a_flood_from_telling_is_inconclusive(change: LOSS, words: str) -> None:
    verdict = verdicts(flooded_history(change=change))[ProbeScope.S8]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert words in verdict.reason


def test_a_loss_that_is_larger_than_what_is_promised_is_no_violation() -> None:
    def change(trial: Trial) -> Trial | None:
        kept = of_s8(Arm.PRIME, prompt_tokens=601)(trial)
        return None if kept is None else lose(*range(40))(kept)

    verdict = verdicts(flooded_history(change=change))[ProbeScope.S8]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.events == 0


def test_floods_are_in_nobodys_trials() -> None:
    trials = flooded_history()
    without = [t for t in trials if t.arm not in SIDE_ARMS]
    for scope in (ProbeScope.S0, ProbeScope.S3, ProbeScope.S5):
        one, other = verdicts(trials)[scope], verdicts(without)[scope]
        assert (one.run, one.failed, one.bound) == (other.run, other.failed, other.bound)


# The detector alone.

KEPT = FloodedPair(
    trial=5, prompt_tokens=512, before=496, after=496, fresh=0, num_flooded=3, again=0
)


def read(*pairs: FloodedPair) -> InterferenceReading:
    return read_floods(pairs, num_flood_prompts=3, protected_tokens=600)


def test_pairs_are_sorted_into_those_that_count_and_why_the_others_do_not() -> None:
    reading = read(
        KEPT,
        replace(KEPT, after=0, trial=6),
        replace(KEPT, num_flooded=2),
        replace(KEPT, after=None),
        replace(KEPT, prompt_tokens=None),
        replace(KEPT, prompt_tokens=600),
        replace(KEPT, before=0, after=0),
        replace(KEPT, again=496),
    )
    assert reading == InterferenceReading(
        num_pairs=8,
        num_short=1,
        num_silent=2,
        num_oversized=1,
        num_absent=1,
        num_counted=3,
        lost=(6,),
        num_fresh_told=3,
        num_fresh_zero=3,
        num_again_told=3,
        num_pressed=2,
    )


def test_nothing_was_run() -> None:
    verdict = judge_interference(
        read(),
        Trials(planned=0, run=0, failed=0),
        Stamp(
            confidence=0.95,
            evidence_threshold=1_000.0,
            seed=1,
            plan_digest="p",
            history_digest="h",
            cache_tier=CacheTier.DEVICE,
            tool_version="0",
        ),
        control=MetadataReading(
            num_read=0,
            num_absent=0,
            num_primed=0,
            hit_trials=(),
            phantom_hits=(),
            impossible=(),
        ),
        protected_tokens=600,
        findings=(),
    )
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_probability_of_losses_is_fishers() -> None:
    chance = loss_probability(num_lost=20, num_flooded=20, num_missed=0, num_controls=20)
    assert chance == pytest.approx(1 / 137_846_528_820)
    half = loss_probability(num_lost=1, num_flooded=40, num_missed=0, num_controls=40)
    assert half == pytest.approx(0.5)
    assert loss_probability(num_lost=0, num_flooded=40, num_missed=9, num_controls=40) == 1.0


# Planning and sending.


def plan_with(**changes: object) -> Plan:
    arguments = {
        "url": "http://127.0.0.1:1", "model": "canary", "tenants": ["a", "b"], "tier": PLAN.tier,
        "seed": 7, "channels": [Channel.METADATA], "declared_level": None, "clients": 4,
        "prompt_tokens": 512, "protected_tokens": 600, "protected_words": 512,
        "flood_tokens": 1_500,
    }  # fmt: skip
    return make_plan(**(arguments | changes))  # type: ignore[arg-type]


def test_floods_are_planned_only_where_something_is_promised() -> None:
    plan = plan_with()
    assert S8 in plan.cells
    assert plan.num_flood_prompts == 3
    without = plan_with(protected_tokens=None)
    assert S8 not in without.cells
    assert without.num_side_requests == 0
    assert plan.num_requests - without.num_requests == 40 * (3 + 5)
    assert plan.num_statistical_cells == without.num_statistical_cells + 1
    behind = plan_with(cache_tier=CacheTier.DISK)
    assert S8 not in behind.cells
    timing = plan_with(channels=[Channel.TIMING])
    assert timing.num_flood_prompts == 0


@pytest.mark.parametrize("changes", [{"protected_words": 63}, {"flood_tokens": 0}])
def test_flood_of_nothing_is_no_plan(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        plan_with(**changes)


@pytest.mark.parametrize("ending", [Ending.DONE, Ending.FAILED])
def test_flood_comes_between_priming_and_probing_and_is_looked_back_at(ending: Ending) -> None:
    plan = plan_with()
    pair = next(pair for pair in iter_pairs(plan) if pair.scope is ProbeScope.S8)
    assert pair.reader == pair.writer != pair.flooder
    sent: list[tuple[Arm, str, str]] = []

    async def send(
        arm: Arm, tenant: str, conversation: str, prompt: Prompt, call: Call, pair: Pair
    ) -> Reply:
        sent.append((arm, tenant, prompt.text))
        assert call.prompt == prompt.text
        return Reply(ending=ending, status=None, start_ns=0, ttft_ns=1, total_ns=1)

    async def send_pair(pair: Pair, arm: Arm, which: int, conversation: str, call: Call) -> Reply:
        sent.append((arm, call.tenant, call.prompt))
        return Reply(ending=Ending.DONE, status=200, start_ns=0, ttft_ns=1, total_ns=1)

    async def run() -> None:
        flood = Flood(plan, send)

        async def between(pair: Pair, hint: str | None) -> None:
            await flood.pour(pair)

        await run_pair(pair, send_pair, between=between, after=flood.look_back)

    asyncio.run(run())
    arms = [arm for arm, *_ in sent]
    floods = [entry for entry in sent if entry[0] is Arm.FLOOD]
    assert len(floods) == (3 if ending is Ending.DONE else 1)
    assert arms[:2] == [Arm.PRIME, Arm.PRIME_AGAIN]
    assert sent[0][2] == sent[1][2]
    assert set(arms[-3:-1]) == {Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED}
    assert arms[-1] is Arm.FLOOD_AGAIN
    assert sent[-1][2] == floods[0][2]
    assert {tenant for _, tenant, _ in floods} == {pair.flooder}
    assert len({text for *_, text in floods}) == len(floods)
    assert sum(len(text.split()) for *_, text in floods) >= (
        plan.flood_tokens if ending is Ending.DONE else 0
    )


def test_a_prompt_fits_into_its_share_whatever_the_tokenizer() -> None:
    assert fitting_words(1_024, tokens_per_word=1.0, at_most=512) == 512
    assert fitting_words(1_024, tokens_per_word=3.0, at_most=512) == 336
    assert fitting_words(400, tokens_per_word=1.0, at_most=512) == 384


@pytest.mark.parametrize(
    ("protected", "flood", "preset", "tier", "words"),
    [
        (None, 100, "vllm", CacheTier.DEVICE, "--protected-tokens"),
        (1_024, None, "vllm", CacheTier.DISK, "behind a flush"),
        (200, None, "vllm", CacheTier.DEVICE, "64 words"),
        (2_048, None, "openai", CacheTier.DEVICE, "1024 words"),
    ],
)
def test_floods_that_could_not_tell_are_refused(
    protected: int | None, flood: int | None, preset: str, tier: CacheTier, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_floods(
            protected,
            flood,
            preset=PRESETS[preset],
            prompt_tokens=1_280,
            num_tenants=2,
            cache_tier=tier,
        )
    assert words in refused.value.message + (refused.value.hint or "")


def test_flood_is_several_shares_of_all_tenants() -> None:
    sizes = choose_floods(
        1_024,
        None,
        preset=PRESETS["kvward-lab"],
        prompt_tokens=512,
        num_tenants=3,
        cache_tier=CacheTier.DEVICE,
    )
    assert (sizes.protected_words, sizes.flood_tokens) == (512, 4 * 3 * 1_024)
