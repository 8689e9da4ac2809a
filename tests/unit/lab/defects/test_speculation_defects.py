"""A draft harms an answer with the defect, and never without it.

Ground truth: the answers of the sound engine, those of a plain forward pass, and who wrote the
tokens that were attended to.
"""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

import lab_schedules
from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import EngineOptions
from lab_load import mixed_load
from lab_models import random_weights, small_config
from lab_schedules import Answer, Ask, largest_error, run_schedule
from lab_witness import WitnessScheduler

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
OPTIONS = EngineOptions(
    block_tokens=4, num_blocks=60, max_batch_tokens=64, max_running_requests=8, draft_tokens=4
)
FIRST = Ask(prompt=tuple(range(16)), max_tokens=8, arrives=0, salt="a")
SECOND = Ask(prompt=tuple(range(20, 35)), max_tokens=12, arrives=40, salt="b")
COMPANY = Ask(prompt=tuple(range(40, 50)), max_tokens=30, arrives=38, salt="c")
LOAD = [
    replace(ask, max_tokens=3 * ask.max_tokens)
    for ask in mixed_load(seed=3, num_asks=120, moments=160)
]


def run(
    *names: str, asks: list[Ask], options: EngineOptions = OPTIONS, seed: int = 0
) -> tuple[list[Answer], WitnessScheduler, Behaviour]:
    behaviour = plant_defects(names, DEFECTS, seed=seed)
    with patch.object(lab_schedules, "Scheduler", WitnessScheduler):
        answers, scheduler = run_schedule(
            WEIGHTS, CONFIG, options, asks, behaviour=behaviour, ward=None
        )
    assert isinstance(scheduler, WitnessScheduler)
    assert scheduler.num_available_blocks == options.num_blocks
    return answers, scheduler, behaviour


def wrong_answers(asks: list[Ask], answers: list[Answer], sound: list[Answer]) -> list[int]:
    """Return the requests that were answered otherwise than by the sound engine."""
    return [
        number
        for number, ask in enumerate(asks)
        if ask.leaves is None and answers[number].tokens != sound[number].tokens
    ]


def test_draft_lane_not_reset_puts_words_of_one_salt_into_the_answer_to_another() -> None:
    asks = [FIRST, replace(COMPANY, arrives=40), SECOND]
    sound, _, _ = run(asks=asks)
    answers, _, behaviour = run("draft-lane-not-reset", asks=asks)
    assert behaviour.strikes[Slip.DRAFT_LANE_NOT_RESET] == 1  # the lane of the first request
    assert wrong_answers(asks, answers, sound) == [1]
    theirs = {*FIRST.prompt, *sound[0].tokens}
    own = {*COMPANY.prompt, *sound[1].tokens}
    assert theirs & set(answers[1].tokens) - own
    # Nothing is wrong with the cache: the model was asked, and its answer not looked at.
    for ask, answer in zip(asks, answers, strict=True):
        assert largest_error(WEIGHTS, CONFIG, ask, answer) < 1e-4


def test_draft_lane_not_reset_does_no_harm_to_a_request_that_is_alone() -> None:
    asks = [FIRST, SECOND]
    answers, _, behaviour = run("draft-lane-not-reset", asks=asks)
    assert behaviour.strikes[Slip.DRAFT_LANE_NOT_RESET] == 1
    assert wrong_answers(asks, answers, run(asks=asks)[0]) == []


def test_draft_rollback_short_goes_on_from_the_rejected_draft() -> None:
    answers, scheduler, behaviour = run("draft-rollback-short", asks=[FIRST])
    sound, quiet, _ = run(asks=[FIRST])
    assert behaviour.strikes[Slip.DRAFT_ROLLBACK_SHORT] > 0
    assert largest_error(WEIGHTS, CONFIG, FIRST, sound[0]) < 1e-4
    assert largest_error(WEIGHTS, CONFIG, FIRST, answers[0]) > 1e-2
    assert len(answers[0].tokens) == FIRST.max_tokens
    assert scheduler.stale_reads > 0
    assert quiet.stale_reads == 0


def test_draft_rollback_short_leaves_the_rejected_draft_in_the_cache() -> None:
    def next_turn(*names: str) -> tuple[int, float]:
        (answer,), _, _ = run(*names, asks=[FIRST])
        prompt = (*FIRST.prompt, *answer.tokens, 5)
        turn = Ask(prompt=prompt, max_tokens=1, arrives=40, salt="a")
        answers, _, _ = run(*names, asks=[FIRST, turn])
        return answers[1].cached_tokens, largest_error(WEIGHTS, CONFIG, turn, answers[1])

    cached, error = next_turn()
    assert cached == 20
    assert error < 1e-4
    cached, error = next_turn("draft-rollback-short")
    assert cached == 20
    assert error > 1e-2


def test_neither_reads_what_another_salt_wrote() -> None:
    for name in ("draft-lane-not-reset", "draft-rollback-short"):
        _, scheduler, _ = run(name, asks=LOAD)
        assert not scheduler.foreign_reads


@pytest.mark.parametrize("name", ["draft-lane-not-reset", "draft-rollback-short"])
def test_rare_speculation_defect_does_harm_rarely_and_repeatably(name: str) -> None:
    sound, _, _ = run(asks=LOAD)
    often, _, every = run(name, asks=LOAD)
    rare, _, behaviour = run(f"{name}:0.05", asks=LOAD)
    again, _, _ = run(f"{name}:0.05", asks=LOAD)
    slip = DEFECTS[name].slip
    assert [a.tokens for a in rare] == [a.tokens for a in again]
    assert every.strikes[slip] == every.opportunities[slip] > 0
    assert behaviour.strikes[slip] < behaviour.opportunities[slip] / 2
    assert 0 < len(wrong_answers(LOAD, rare, sound)) < len(wrong_answers(LOAD, often, sound)) / 2


@pytest.mark.parametrize("name", ["draft-lane-not-reset", "draft-rollback-short"])
def test_speculation_defect_needs_drafts(name: str) -> None:
    options = replace(OPTIONS, draft_tokens=0)
    answers, _, behaviour = run(name, asks=LOAD, options=options)
    assert behaviour.opportunities[DEFECTS[name].slip] == 0
    assert wrong_answers(LOAD, answers, run(asks=LOAD, options=options)[0]) == []
