"""What is erased is gone and what is over a share is evicted, unless a defect is planted.

Ground truth: how many tokens the engine reuses, and the bytes in its pages.
"""

from dataclasses import replace

import numpy as np
import pytest

from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import EngineOptions
from kvward.lab.scheduler import Scheduler
from lab_models import random_weights, small_config
from lab_schedules import Answer, Ask, largest_error, run_schedule

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
OPTIONS = EngineOptions(block_tokens=4, num_blocks=60, max_batch_tokens=32)
PROMPT = tuple(range(24))
OTHER = tuple(range(49, 5, -1))


def run(
    *names: str, asks: list[Ask], options: EngineOptions, erase_at: int | None = None
) -> tuple[list[Answer], Scheduler, list[int]]:
    erased: list[int] = []
    moments = {erase_at: lambda s: erased.append(s.erase("a"))} if erase_at is not None else {}
    answers, scheduler = run_schedule(
        WEIGHTS, CONFIG, options, asks, behaviour=plant_defects(names, DEFECTS), ward=None,
        at_moment=moments,
    )  # fmt: skip
    for ask, answer in zip(asks, answers, strict=True):
        assert largest_error(WEIGHTS, CONFIG, ask, answer) < 1e-4
    assert scheduler.num_available_blocks == options.num_blocks
    return answers, scheduler, erased


def ask(salt: str, arrives: int, *, prompt: tuple[int, ...] = PROMPT, max_tokens: int = 1) -> Ask:
    return Ask(prompt=prompt, max_tokens=max_tokens, arrives=arrives, salt=salt)


def cached(*names: str, asks: list[Ask], options: EngineOptions = OPTIONS) -> tuple[list[int], int]:
    answers, _, erased = run(*names, asks=asks, options=options, erase_at=30)
    return [answer.cached_tokens for answer in answers], erased[0]


IN_MEMORY = [ask("a", 0), ask("b", 10), ask("a", 40), ask("b", 50)]


def test_erasing_a_salt_removes_its_blocks_and_no_others() -> None:
    assert cached(asks=IN_MEMORY) == ([0, 0, 0, 20], 6)
    assert cached("erase-skips-offload", asks=IN_MEMORY) == ([0, 0, 0, 20], 6)


def test_erased_bytes_are_overwritten() -> None:
    _, scheduler, _ = run(asks=[ask("a", 0)], options=OPTIONS, erase_at=29)
    assert np.any(scheduler._memory.pages)
    _, scheduler, _ = run(asks=[ask("a", 0), ask("b", 29)], options=OPTIONS, erase_at=28)
    used = np.flatnonzero(scheduler._memory.pages.any(axis=(0, 1, 3, 4, 5)))
    assert len(used) == 6  # of the second request only


def test_erase_reported_only_removes_nothing() -> None:
    assert cached("erase-reported-only", asks=IN_MEMORY) == ([0, 0, 20, 20], 6)


@pytest.mark.parametrize(
    ("names", "hit"), [((), 0), (("erase-skips-offload",), 20), (("erase-reported-only",), 20)]
)
def test_erasing_reaches_the_host_tier(names: tuple[str, ...], hit: int) -> None:
    options = replace(OPTIONS, num_blocks=12, host_blocks=200)
    # The other prompt fills the memory: a block left there would be erased, and end the prefix.
    asks = [ask("a", 0), ask("b", 10, prompt=(1, 2, 3, *OTHER)), ask("a", 40)]
    assert cached(*names, asks=asks, options=options)[0] == [0, 0, hit]


def test_request_that_runs_while_its_salt_is_erased_leaves_nothing() -> None:
    asks = [ask("a", 25, max_tokens=20), ask("a", 60)]
    assert cached(asks=asks)[0] == [0, 0]


FLOOD = [
    ask("b", 10 + 3 * n, prompt=tuple(np.random.default_rng(n).integers(0, 50, 40).tolist()))
    for n in range(20)
]


def test_quota_keeps_one_salt_from_evicting_another_and_quota_ignored_does_not() -> None:
    asks = [ask("a", 0), *FLOOD, ask("a", 80)]
    share = replace(OPTIONS, scope_quota_blocks=12)

    def survives(*names: str, options: EngineOptions) -> int:
        return run(*names, asks=asks, options=options)[0][-1].cached_tokens

    assert survives(options=share) == 20
    assert survives("quota-ignored", options=share) == 0
    assert survives(options=OPTIONS) == 0


def test_salt_over_its_share_loses_its_own_longest_unused_blocks() -> None:
    asks = [ask("a", 0), ask("a", 10, prompt=OTHER), ask("a", 20, prompt=OTHER), ask("a", 30)]
    answers, _, _ = run(asks=asks, options=replace(OPTIONS, scope_quota_blocks=11))
    assert [answer.cached_tokens for answer in answers] == [0, 0, 40, 0]
