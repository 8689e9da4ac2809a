"""Each defect of the engine's memory does harm under load; without it the same load does none.

Ground truth: the answers of a plain forward pass, who wrote the tokens that were attended to, and
the engine's own counters.
"""

from dataclasses import replace
from unittest.mock import patch

import pytest

import lab_schedules
from kvward.lab.behaviour import Behaviour
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import EngineOptions
from lab_load import mixed_load
from lab_models import random_weights, small_config
from lab_schedules import Answer, Ask, largest_error, run_schedule
from lab_witness import WitnessScheduler

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
SMALL = EngineOptions(block_tokens=4, num_blocks=50, max_batch_tokens=16, max_running_requests=8)
HOST = replace(SMALL, num_blocks=26, host_blocks=400)
SLOW_HOST = replace(HOST, host_steps=3)
VERY_SLOW = replace(HOST, num_blocks=40, host_steps=6, max_running_requests=16, max_batch_tokens=64)
FAULTS = replace(HOST, host_blocks=60, host_fault_rate=0.2)
WRONG = 1e-4
ASKS = mixed_load(seed=3, num_asks=120, moments=160)
IMPATIENT = mixed_load(seed=4, num_asks=160, moments=200, leaving=0.6)
OPTIONS = {
    "reuse-in-flight": SMALL,
    "early-publish": replace(SMALL, max_batch_tokens=8),
    "cancel-in-flight": VERY_SLOW,
    "late-offload": HOST,
    "read-before-ready": SLOW_HOST,
    "phantom-hit": SMALL,
    "double-ownership": SMALL,
    "hit-too-long": SMALL,
    "layer-missing": HOST,
    "position-shift": HOST,
    "table-row-mixed": SMALL,
    "torn-write-served": FAULTS,
    "failed-load-served": FAULTS,
}
# Seen in the pages themselves; what went through the host tier is not followed.
FOREIGN = [
    "reuse-in-flight", "early-publish", "read-before-ready", "phantom-hit", "double-ownership",
    "hit-too-long", "table-row-mixed", "failed-load-served",
]  # fmt: skip


def run(
    *names: str, options: EngineOptions, asks: list[Ask] = ASKS, seed: int = 0
) -> tuple[list[Answer], WitnessScheduler, Behaviour]:
    behaviour = plant_defects(names, DEFECTS, seed=seed)
    with patch.object(lab_schedules, "Scheduler", WitnessScheduler):
        answers, scheduler = run_schedule(
            WEIGHTS, CONFIG, options, asks, behaviour=behaviour, ward=None
        )
    assert isinstance(scheduler, WitnessScheduler)
    return answers, scheduler, behaviour


def num_wrong(answers: list[Answer], asks: list[Ask] = ASKS) -> int:
    return sum(
        largest_error(WEIGHTS, CONFIG, ask, answer) > WRONG
        for ask, answer in zip(asks, answers, strict=True)
    )


def load_for(name: str) -> list[Ask]:
    return IMPATIENT if name == "cancel-in-flight" else ASKS


@pytest.mark.parametrize("options", [SMALL, HOST, SLOW_HOST, FAULTS], ids=str)
def test_sound_engine_answers_right_under_the_same_load(options: EngineOptions) -> None:
    answers, scheduler, _ = run(options=options)
    assert num_wrong(answers) == 0
    assert not scheduler.foreign_reads
    assert scheduler.stale_reads == 0
    assert scheduler.stats["evicted_blocks"] > 0
    assert scheduler.stats["cached_tokens"] > 0
    assert options.host_blocks == 0 or scheduler.stats["restored_blocks"] > 0
    assert scheduler.num_available_blocks == options.num_blocks


@pytest.mark.parametrize("name", OPTIONS)
def test_defect_gives_wrong_answers(name: str) -> None:
    asks = load_for(name)
    answers, _, behaviour = run(name, options=OPTIONS[name], asks=asks)
    assert behaviour.strikes[DEFECTS[name].slip] > 0
    assert num_wrong(answers, asks) > 0


@pytest.mark.parametrize("name", FOREIGN)
def test_defect_makes_one_salt_attend_to_tokens_of_another(name: str) -> None:
    _, scheduler, _ = run(name, options=OPTIONS[name])
    assert scheduler.foreign_reads


@pytest.mark.parametrize("name", OPTIONS)
def test_rare_defect_does_harm_rarely_and_repeatably(name: str) -> None:
    asks = load_for(name)
    everywhere, _, _ = run(name, options=OPTIONS[name], asks=asks)
    rare, _, behaviour = run(f"{name}:0.05", options=OPTIONS[name], asks=asks)
    again, _, _ = run(f"{name}:0.05", options=OPTIONS[name], asks=asks)
    slip = DEFECTS[name].slip
    assert [a.tokens for a in rare] == [a.tokens for a in again]
    assert 0 <= behaviour.strikes[slip] < behaviour.opportunities[slip] / 2
    assert num_wrong(rare, asks) < num_wrong(everywhere, asks)


def test_sound_engine_answers_right_when_clients_leave_while_copies_are_on_their_way() -> None:
    answers, _, _ = run(options=OPTIONS["cancel-in-flight"], asks=IMPATIENT)
    assert num_wrong(answers, IMPATIENT) == 0


def test_table_row_mixed_shows_in_no_counter() -> None:
    alone = [replace(ask, prompt=(n % 50, n // 50, *ask.prompt)) for n, ask in enumerate(ASKS)]
    broken, scheduler, _ = run("table-row-mixed", options=SMALL, asks=alone)
    sound, quiet, _ = run(options=SMALL, asks=alone)
    assert num_wrong(broken, alone) > 0
    assert [a.cached_tokens for a in broken] == [a.cached_tokens for a in sound] == [0] * len(alone)
    assert scheduler.stats == quiet.stats


def two_turns(options: EngineOptions, *names: str) -> tuple[list[Answer], WitnessScheduler]:
    """One prompt under one salt, then the same under another, then again under the second."""
    prompt = tuple(range(30))
    asks = [
        Ask(prompt=prompt, max_tokens=3, arrives=20 * n, salt=salt)
        for n, salt in enumerate(("a", "b", "b"))
    ]
    answers, scheduler, _ = run(*names, options=options, asks=asks)
    assert num_wrong(answers, asks) == 0
    return answers, scheduler


def test_hidden_sharing_saves_the_work_and_hides_it() -> None:
    sound, quiet = two_turns(SMALL)
    answers, scheduler = two_turns(SMALL, "hidden-sharing")
    assert [a.cached_tokens for a in answers] == [a.cached_tokens for a in sound] == [0, 0, 28]
    assert quiet.stats["prefill_tokens"] == 30 + 30 + 2
    assert scheduler.stats["prefill_tokens"] == 30 + 2 + 2
    assert scheduler.foreign_reads
    assert not quiet.foreign_reads


def test_cached_tokens_global_reports_what_is_not_reused() -> None:
    answers, scheduler = two_turns(SMALL, "cached-tokens-global")
    assert [a.cached_tokens for a in answers] == [0, 28, 28]
    assert scheduler.stats["prefill_tokens"] == 30 + 30 + 2
    assert not scheduler.foreign_reads


def test_scope_missing_offload_hits_across_salts_once_the_prompt_has_left_memory() -> None:
    options = replace(SMALL, num_blocks=12, host_blocks=100)
    prompt, other = tuple(range(24)), tuple(range(49, 5, -1))

    def cached(*names: str) -> tuple[list[int], list[int]]:
        asks = [
            Ask(prompt=prompt, max_tokens=1, arrives=0, salt="a"),
            Ask(prompt=prompt, max_tokens=1, arrives=10, salt="b"),
            Ask(prompt=other, max_tokens=1, arrives=20, salt="c"),
            Ask(prompt=prompt, max_tokens=1, arrives=40, salt="d"),
        ]
        answers, scheduler, _ = run(*names, options=options, asks=asks)
        assert num_wrong(answers, asks) == 0
        return [a.cached_tokens for a in answers], [scheduler.stats["restored_blocks"]]

    assert cached() == ([0, 0, 0, 0], [0])
    assert cached("scope-missing-offload") == ([0, 0, 0, 20], [5])


def test_short_block_hash_finds_the_wrong_block_about_as_often_as_chance_says() -> None:
    options = EngineOptions(block_tokens=4, num_blocks=4000, max_batch_tokens=64)
    asks = [
        Ask(prompt=(n % 50, n // 50, 1, 2, 3, 4), max_tokens=1, arrives=n // 8, salt=f"s{n}")
        for n in range(1000)
    ]
    sound, _, _ = run(options=options, asks=asks)
    broken, scheduler, _ = run("short-block-hash", options=options, asks=asks)
    assert not any(a.cached_tokens for a in sound)
    collisions = sum(a.cached_tokens > 0 for a in broken)
    # 1,000 names of 16 bits: 7.6 expected to have been there before; fixed by the names alone.
    assert 1 <= collisions <= 20
    assert 0 < num_wrong(broken, asks) <= collisions
    assert scheduler.foreign_reads
