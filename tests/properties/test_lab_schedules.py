"""Batched, chunked, paged, cached, offloaded and preempted runs answer as one plain run does."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvward.events import EventCounter
from kvward.lab.behaviour import SOUND
from kvward.lab.interface import EngineOptions, FinishReason
from kvward.lab.ward import EngineWard
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.terms import SharingLevel
from lab_models import random_weights, small_config
from lab_schedules import Ask, largest_error, run_schedule

TOLERANCE = 1e-4
ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
TOKENS = [
    ISSUER.token(
        Scope(deployment="test", tenant=t, level=SharingLevel.TENANT, subject=b"", epoch=0)
    )
    for t in ("a", "b")
]


@st.composite
def asks(draw: st.DrawFn) -> list[Ask]:
    prefixes = [
        tuple(np.random.default_rng(seed).integers(0, 50, 40).tolist()) for seed in range(3)
    ]
    made = []
    for _ in range(draw(st.integers(2, 8))):
        prefix = draw(st.sampled_from(prefixes))[: draw(st.integers(1, 40))]
        tail = tuple(draw(st.lists(st.integers(0, 49), max_size=6)))
        arrives = draw(st.integers(0, 12))
        made.append(
            Ask(
                prompt=prefix + tail,
                max_tokens=draw(st.integers(1, 8)),
                arrives=arrives,
                salt=draw(st.sampled_from([None, *TOKENS])),
                leaves=draw(st.none() | st.integers(arrives, arrives + 6)),
            )
        )
    return made


@settings(max_examples=60)
@given(
    asks=asks(),
    seed=st.integers(0, 5),
    block_tokens=st.sampled_from([2, 4, 16]),
    spare_blocks=st.integers(0, 10),
    max_batch_tokens=st.sampled_from([1, 5, 16, 256]),
    max_running=st.integers(1, 8),
    host_blocks=st.sampled_from([0, 4, 100]),
    heads=st.sampled_from([(4, 2), (4, 4), (6, 1)]),
    warded=st.booleans(),
)
def test_every_schedule_answers_like_the_plain_model(
    asks: list[Ask],
    seed: int,
    block_tokens: int,
    spare_blocks: int,
    max_batch_tokens: int,
    max_running: int,
    host_blocks: int,
    heads: tuple[int, int],
    warded: bool,
) -> None:
    config = small_config(num_heads=heads[0], num_kv_heads=heads[1])
    weights = random_weights(config, seed=seed)
    longest = max(len(ask.prompt) + ask.max_tokens for ask in asks)
    options = EngineOptions(
        block_tokens=block_tokens,
        num_blocks=max(2, -(-longest // block_tokens) + spare_blocks),
        max_batch_tokens=max_batch_tokens,
        max_running_requests=max_running,
        host_blocks=host_blocks,
    )
    events = EventCounter()
    ward = EngineWard(ISSUER.token_key, events=events) if warded else None
    answers, scheduler = run_schedule(weights, config, options, asks, behaviour=SOUND, ward=ward)
    for ask, answer in zip(asks, answers, strict=True):
        assert largest_error(weights, config, ask, answer) < TOLERANCE
        if ask.leaves is None:
            assert answer.reason is FinishReason.LENGTH
            assert len(answer.tokens) == ask.max_tokens
    # Nothing is left behind, and a sound engine gives its ward nothing to refuse.
    assert scheduler.num_available_blocks == options.num_blocks
    assert events.counts().get("ward.read-refused", 0) == 0
