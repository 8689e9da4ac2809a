"""A slot keeps its own request's state for its own salt, unless a defect is planted.

Ground truth: the answers of a plain forward pass, and what is in the slots.
"""

from dataclasses import replace

import pytest

from kvward.errors import UsageError
from kvward.lab.behaviour import Behaviour
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import EngineOptions
from kvward.lab.scheduler import Scheduler
from lab_load import mixed_load
from lab_models import random_weights, small_config
from lab_schedules import Answer, Ask, largest_error, run_schedule

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
OPTIONS = EngineOptions(
    block_tokens=4, num_blocks=60, max_batch_tokens=32, prefix_cache=False, num_slots=3
)
PROMPT = tuple(range(24))
OTHER = tuple(range(40, 10, -1))


def run(
    *names: str, asks: list[Ask], options: EngineOptions = OPTIONS, seed: int = 0
) -> tuple[list[Answer], list[bool], Scheduler, Behaviour]:
    behaviour = plant_defects(names, DEFECTS, seed=seed)
    answers, scheduler = run_schedule(
        WEIGHTS, CONFIG, options, asks, behaviour=behaviour, ward=None
    )
    wrong = [
        largest_error(WEIGHTS, CONFIG, ask, answer) > 1e-4
        for ask, answer in zip(asks, answers, strict=True)
    ]
    assert scheduler.num_available_blocks == options.num_blocks
    return answers, wrong, scheduler, behaviour


def ask(prompt: tuple[int, ...], arrives: int, *, salt: str = "a", slot: int | None = None) -> Ask:
    return Ask(prompt=prompt, max_tokens=2, arrives=arrives, salt=salt, slot_id=slot)


def cached(answers: list[Answer]) -> list[int]:
    return [answer.cached_tokens for answer in answers]


def test_request_goes_on_from_its_slot_and_no_other_salt_does() -> None:
    asks = [ask(PROMPT, 0), ask(PROMPT, 10, salt="b"), ask(OTHER, 20), ask((*PROMPT, 7, 8), 30)]
    answers, wrong, scheduler, _ = run(asks=asks)
    assert cached(answers) == [0, 0, 0, 24]
    assert not any(wrong)
    views = scheduler.slots().view(scope="b")
    assert [view.tokens[:24] for view in views] == [PROMPT]


def test_chosen_slot_forgets_what_was_in_it() -> None:
    asks = [ask(PROMPT, 0, slot=1), ask(OTHER, 10, slot=1), ask(PROMPT, 20, slot=1)]
    answers, wrong, _, _ = run(asks=asks)
    assert cached(answers) == [0, 0, 0]
    assert not any(wrong)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_sound_slots_answer_right_under_load(prefix_cache: bool) -> None:
    options = replace(OPTIONS, prefix_cache=prefix_cache)
    answers, wrong, _, _ = run(asks=mixed_load(seed=3), options=options)
    assert not any(wrong)
    assert sum(cached(answers)) > 0


def test_slot_not_reset_attends_to_the_prompt_before_and_says_nothing() -> None:
    asks = [ask(PROMPT, 0, slot=0), ask(OTHER, 10, salt="b", slot=0)]
    answers, wrong, _, _ = run("slot-not-reset", asks=asks)
    assert cached(answers) == [0, 0]
    assert wrong == [False, True]


def test_slot_mixed_restores_the_state_beside() -> None:
    asks = [ask(PROMPT, 0, slot=0), ask(OTHER, 10, salt="b", slot=1), ask((*PROMPT, 7), 20, slot=0)]
    assert run(asks=asks)[1] == [False] * 3
    answers, wrong, _, _ = run("slot-mixed", asks=asks)
    assert cached(answers) == [0, 0, 24]
    assert wrong == [False, False, True]


@pytest.mark.parametrize("name", ["slot-not-reset", "slot-mixed"])
def test_rare_slot_defect_does_harm_rarely(name: str) -> None:
    asks = mixed_load(seed=3, num_asks=120, moments=240)
    _, often, _, every = run(name, asks=asks)
    _, rarely, _, behaviour = run(f"{name}:0.1", asks=asks)
    slip = DEFECTS[name].slip
    assert every.strikes[slip] == every.opportunities[slip] > 0
    assert behaviour.strikes[slip] < behaviour.opportunities[slip] / 2
    assert sum(rarely) < sum(often)


def test_saved_state_goes_back_for_its_own_salt_only() -> None:
    _, _, scheduler, _ = run(asks=[ask(PROMPT, 0, slot=0)])
    shelf = scheduler.slots()
    taken = shelf.take_out(0, scope="a")
    assert taken is not None
    assert shelf.take_out(0, scope="b") is None
    assert shelf.take_out(1, scope="a") is None
    assert shelf.put_back(2, taken, scope="a") == 6
    changed = taken[:-1] + bytes([taken[-1] ^ 1])
    for bad, scope in [(taken, "b"), (changed, "a"), (b"", "a"), (taken[:40], "a")]:
        with pytest.raises(UsageError, match="not the state"):
            shelf.put_back(1, bad, scope=scope)
    assert shelf.state(1) is None
    for number in (-1, 3):
        with pytest.raises(UsageError, match="no slot"):
            shelf.put_back(number, taken, scope="a")


def test_slot_state_unverified_takes_the_state_of_another_salt_and_changed_bytes() -> None:
    _, _, scheduler, _ = run("slot-state-unverified", asks=[ask(PROMPT, 0, slot=0)])
    shelf = scheduler.slots()
    taken = shelf.take_out(0, scope="a")
    assert taken is not None
    assert shelf.put_back(1, taken, scope="b") == 6
    state = shelf.state(1)
    assert state is not None
    assert (state.scope, state.tokens[:24]) == ("b", PROMPT)
    changed = taken[:-1] + bytes([taken[-1] ^ 1])
    assert shelf.put_back(2, changed, scope="a") == 6
    with pytest.raises(UsageError, match="not the state"):
        shelf.put_back(2, b"x" * 100, scope="a")


def test_slots_reveal_prompts_of_everybody() -> None:
    asks = [ask(PROMPT, 0, slot=0), ask(OTHER, 10, salt="b", slot=1)]
    assert [v.slot_id for v in run(asks=asks)[2].slots().view(scope="a")] == [0]
    views = run("slots-reveal-prompts", asks=asks)[2].slots().view(scope="a")
    assert [v.slot_id for v in views] == [0, 1]
    assert views[1].tokens[: len(OTHER)] == OTHER


def test_erased_salt_has_nothing_in_its_slots() -> None:
    _, _, scheduler, _ = run(asks=[ask(PROMPT, 0, slot=0), ask(OTHER, 10, salt="b", slot=1)])
    assert scheduler.erase("a") == 6
    assert scheduler.slots().view(scope="a") == []
    assert len(scheduler.slots().view(scope="b")) == 1


def test_unknown_slot_is_refused() -> None:
    with pytest.raises(UsageError, match="no slot 9"):
        run(asks=[ask(PROMPT, 0, slot=9)])
