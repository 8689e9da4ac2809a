"""Each defect does harm under load, the sound engine none, and the ward mends all three."""

from collections import Counter

import numpy as np
import pytest

from kvward.events import EventCounter
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import EngineOptions
from kvward.lab.ward import EngineWard
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.terms import SharingLevel
from lab_models import random_weights, small_config
from lab_schedules import WARD_MENDS, Answer, Ask, largest_error, run_schedule

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
OPTIONS = EngineOptions(block_tokens=4, num_blocks=50, max_batch_tokens=16, max_running_requests=8)
ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
SALTS = [
    ISSUER.token(
        Scope(deployment="test", tenant=t, level=SharingLevel.TENANT, subject=b"", epoch=0)
    )
    for t in ("a", "b")
]


def load(*, seed: int = 3) -> list[Ask]:
    """Many requests on few prefixes and in a small pool, some of whose clients leave."""
    random = np.random.default_rng(seed)
    prefixes = [tuple(random.integers(0, 50, 24).tolist()) for _ in range(4)]
    asks = []
    for _ in range(80):
        arrives = int(random.integers(0, 120))
        if random.random() < 0.6:
            prompt = prefixes[int(random.integers(4))]
            prompt += tuple(random.integers(0, 50, int(random.integers(1, 6))).tolist())
        else:
            prompt = tuple(random.integers(0, 50, int(random.integers(10, 50))).tolist())
        leaves = arrives + int(random.integers(0, 6)) if random.random() < 0.2 else None
        asks.append(
            Ask(
                prompt=prompt,
                max_tokens=int(random.integers(1, 10)),
                arrives=arrives,
                salt=SALTS[int(random.integers(2))],
                leaves=leaves,
            )
        )
    return asks


ASKS = load()


def run(
    names: tuple[str, ...], *, warded: bool, options: EngineOptions = OPTIONS
) -> tuple[list[Answer], Counter[str], dict[str, int]]:
    events = EventCounter()
    ward = EngineWard(ISSUER.token_key, events=events) if warded else None
    answers, scheduler = run_schedule(
        WEIGHTS, CONFIG, options, ASKS, behaviour=plant_defects(names, DEFECTS), ward=ward
    )
    assert scheduler.num_available_blocks == options.num_blocks
    return answers, scheduler.stats, events.counts()


def wrong(answers: list[Answer]) -> int:
    return sum(
        largest_error(WEIGHTS, CONFIG, ask, answer) > 1e-4
        for ask, answer in zip(ASKS, answers, strict=True)
    )


def test_sound_engine_answers_right_under_the_load_that_shows_the_defects() -> None:
    answers, stats, _ = run((), warded=False)
    assert wrong(answers) == 0
    assert stats["evicted_blocks"] > 0
    assert stats["cached_tokens"] > 0


def test_pressure_makes_the_sound_engine_preempt_and_it_still_answers_right() -> None:
    tight = EngineOptions(
        block_tokens=4, num_blocks=18, max_batch_tokens=64, max_running_requests=8, host_blocks=64
    )
    answers, stats, _ = run((), warded=False, options=tight)
    assert wrong(answers) == 0
    assert stats["preemptions"] > 0
    assert stats["restored_blocks"] > 0


@pytest.mark.parametrize("name", ["reuse-in-flight", "early-publish"])
def test_memory_defect_gives_wrong_answers(name: str) -> None:
    answers, _, _ = run((name,), warded=False)
    assert wrong(answers) > 0


def test_scope_missing_reuses_across_salts_and_answers_right() -> None:
    sound = run((), warded=False)
    broken = run(("scope-missing",), warded=False)
    assert wrong(broken[0]) == 0
    assert broken[1]["cached_tokens"] > 1.5 * sound[1]["cached_tokens"]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("scope-missing",), "other-scope"),
        (("reuse-in-flight",), "lease-ended"),
        (("early-publish",), "not-committed"),
        (WARD_MENDS, "other-scope"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_ward_mends_the_defect_and_counts_what_it_refused(
    names: tuple[str, ...], reason: str
) -> None:
    answers, _, events = run(names, warded=True)
    assert wrong(answers) == 0
    assert events[f"ward.read-refused:{reason}"] > 0
    for number, (ask, answer) in enumerate(zip(ASKS, answers, strict=True)):
        if ask.leaves is None:
            assert len(answer.tokens) == ask.max_tokens, number


def test_ward_refuses_nothing_to_the_sound_engine() -> None:
    _, _, events = run((), warded=True)
    assert events == {}


def test_ward_gives_a_salt_that_is_no_token_a_scope_of_its_own() -> None:
    events = EventCounter()
    ward = EngineWard(ISSUER.token_key, events=events)
    scopes = [ward.admit(salt) for salt in (None, "", "kw1.forged.0.x", "kw1.forged.0.x")]
    assert len(set(scopes)) == 4
    assert events.counts() == {"ward.salt-refused": 4}
    assert ward.admit(SALTS[0]) == SALTS[0]
