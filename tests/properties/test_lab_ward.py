"""Whatever mixture of defects is planted, a ward lets no wrong answer out; memory stays sound."""

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lab_schedules
from kvward.events import EventCounter
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import EngineOptions, FinishReason
from kvward.lab.scheduler import Scheduler
from kvward.lab.ward import EngineWard
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.terms import SharingLevel
from lab_models import random_weights, small_config
from lab_schedules import WARD_MENDS, Ask, largest_error, run_schedule

TOLERANCE = 1e-4
CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
TOKENS = [
    ISSUER.token(
        Scope(deployment="test", tenant=t, level=SharingLevel.TENANT, subject=b"", epoch=0)
    )
    for t in ("a", "b")
]


class WatchedScheduler(Scheduler):
    """Checks the whole memory after every step of a sound engine."""

    watching = True

    def step(self) -> None:
        super().step()
        if self.watching:
            self.check_holders()
            self.check_index()
            self.check_written()

    def check_holders(self) -> None:
        pool = self._memory.resident._pool
        held = Counter(h.block for s in (*self._running, *self._waiting) for h in s.held)
        for block in range(pool.num_blocks):
            assert pool.holders(block) == held[block]
        free, kept = list(pool._free), list(pool._kept)
        assert sorted([*free, *kept, *held]) == list(range(pool.num_blocks))
        assert not any(s.held for s in self._waiting)

    def check_index(self) -> None:
        pool, index = self._memory.resident._pool, self._memory.resident._index
        assert {block: name for name, block in index._blocks.items()} == index._hashes
        assert not set(pool._free) & set(index._hashes)
        assert set(pool._kept) <= set(index._hashes)

    def check_written(self) -> None:
        """What can be found is written, and is not changed as long as it can be found."""
        index, pages = self._memory.resident._index, self._memory.pages
        for sequence in self._running:
            full = sequence.num_computed // self._options.block_tokens
            for held in sequence.held[full:]:
                assert index.hash_of(held.block) is None
        seen: dict[bytes, np.ndarray] = self.__dict__.setdefault("seen", {})
        for name, block in index._blocks.items():
            content = pages[:, :, block]
            if name in seen:
                # Computed anew after an eviction, or restored: the same but for rounding.
                np.testing.assert_allclose(content, seen[name], atol=TOLERANCE)
            else:
                seen[name] = content.copy()


class UnwatchedScheduler(WatchedScheduler):
    watching = False


@st.composite
def asks(draw: st.DrawFn) -> list[Ask]:
    random = np.random.default_rng(draw(st.integers(0, 1_000)))
    prefixes = [tuple(random.integers(0, 50, 30).tolist()) for _ in range(3)]
    made = []
    for _ in range(draw(st.integers(5, 25))):
        arrives = int(random.integers(0, 40))
        prompt = prefixes[int(random.integers(3))][: int(random.integers(1, 31))]
        prompt += tuple(random.integers(0, 50, int(random.integers(0, 8))).tolist())
        leaves = arrives + int(random.integers(0, 6)) if random.random() < 0.3 else None
        made.append(
            Ask(
                prompt=prompt,
                max_tokens=int(random.integers(1, 10)),
                arrives=arrives,
                salt=TOKENS[int(random.integers(2))],
                leaves=leaves,
            )
        )
    return made


@settings(max_examples=60)
@given(
    asks=asks(),
    names=st.sets(st.sampled_from(WARD_MENDS)),
    block_tokens=st.sampled_from([2, 4]),
    spare_blocks=st.integers(0, 20),
    max_batch_tokens=st.sampled_from([3, 16, 64]),
    max_running=st.integers(1, 8),
    host_blocks=st.sampled_from([0, 5, 60]),
    draft_tokens=st.sampled_from([0, 1, 4]),
)
def test_no_mixture_of_defects_gets_past_the_ward(
    asks: list[Ask],
    names: set[str],
    block_tokens: int,
    spare_blocks: int,
    max_batch_tokens: int,
    max_running: int,
    host_blocks: int,
    draft_tokens: int,
) -> None:
    longest = max(len(ask.prompt) + ask.max_tokens for ask in asks)
    options = EngineOptions(
        block_tokens=block_tokens,
        num_blocks=-(-longest // block_tokens) + spare_blocks,
        max_batch_tokens=max_batch_tokens,
        max_running_requests=max_running,
        host_blocks=host_blocks,
        draft_tokens=draft_tokens,
    )
    ward = EngineWard(ISSUER.token_key, events=EventCounter())
    with patch.object(lab_schedules, "Scheduler", UnwatchedScheduler):
        answers, scheduler = run_schedule(
            WEIGHTS, CONFIG, options, asks, behaviour=plant_defects(names, DEFECTS), ward=ward
        )
    for ask, answer in zip(asks, answers, strict=True):
        assert largest_error(WEIGHTS, CONFIG, ask, answer) < TOLERANCE
        if ask.leaves is None:
            assert answer.reason is FinishReason.LENGTH
            assert len(answer.tokens) == ask.max_tokens
    assert scheduler.num_available_blocks == options.num_blocks


@settings(max_examples=60)
@given(
    asks=asks(),
    block_tokens=st.sampled_from([2, 4]),
    spare_blocks=st.integers(0, 20),
    max_batch_tokens=st.sampled_from([3, 16, 64]),
    max_running=st.integers(1, 8),
    host_blocks=st.sampled_from([0, 5, 60]),
    draft_tokens=st.sampled_from([0, 1, 4]),
    warded=st.booleans(),
)
def test_memory_of_the_sound_engine_agrees_with_itself_after_every_step(
    asks: list[Ask],
    block_tokens: int,
    spare_blocks: int,
    max_batch_tokens: int,
    max_running: int,
    host_blocks: int,
    draft_tokens: int,
    warded: bool,
) -> None:
    longest = max(len(ask.prompt) + ask.max_tokens for ask in asks)
    options = EngineOptions(
        block_tokens=block_tokens,
        num_blocks=-(-longest // block_tokens) + spare_blocks,
        max_batch_tokens=max_batch_tokens,
        max_running_requests=max_running,
        host_blocks=host_blocks,
        draft_tokens=draft_tokens,
    )
    ward = EngineWard(ISSUER.token_key, events=EventCounter()) if warded else None
    with patch.object(lab_schedules, "Scheduler", WatchedScheduler):
        _, scheduler = run_schedule(
            WEIGHTS, CONFIG, options, asks, behaviour=plant_defects((), DEFECTS), ward=ward
        )
    assert isinstance(scheduler, WatchedScheduler)
    assert scheduler.num_available_blocks == options.num_blocks


@pytest.mark.parametrize("name", ["reuse-in-flight", "early-publish"])
def test_watching_finds_each_defect_of_memory(name: str) -> None:
    random = np.random.default_rng(2)
    prefix = tuple(random.integers(0, 50, 24).tolist())
    requests = [
        Ask(prompt=(*prefix, number), max_tokens=4, arrives=2 * number, salt=TOKENS[0])
        for number in range(6)
    ]
    options = EngineOptions(block_tokens=4, num_blocks=20, max_batch_tokens=8)
    with patch.object(lab_schedules, "Scheduler", WatchedScheduler):
        run_schedule(
            WEIGHTS, CONFIG, options, requests, behaviour=plant_defects((), DEFECTS), ward=None
        )
        with pytest.raises(AssertionError):
            run_schedule(
                WEIGHTS,
                CONFIG,
                options,
                requests,
                behaviour=plant_defects((name,), DEFECTS),
                ward=None,
            )


def test_block_taken_from_its_finder_is_not_named_again() -> None:
    random = np.random.default_rng(0)
    prefixes = [tuple(random.integers(0, 50, 30).tolist()) for _ in range(3)]
    requests = [
        Ask(
            prompt=prefixes[int(random.integers(3))][: int(random.integers(5, 31))],
            max_tokens=int(random.integers(1, 10)),
            arrives=int(random.integers(0, 60)),
            salt=TOKENS[0],
        )
        for _ in range(60)
    ]
    options = EngineOptions(
        block_tokens=2,
        num_blocks=20,
        max_batch_tokens=3,
        max_running_requests=2,
        host_blocks=60,
    )
    behaviour = plant_defects(("early-publish", "reuse-in-flight"), DEFECTS)
    ward = EngineWard(ISSUER.token_key, events=EventCounter())
    answers, _ = run_schedule(WEIGHTS, CONFIG, options, requests, behaviour=behaviour, ward=ward)
    wrong = [
        number
        for number, (ask, answer) in enumerate(zip(requests, answers, strict=True))
        if largest_error(WEIGHTS, CONFIG, ask, answer) > TOLERANCE
    ]
    assert not wrong
