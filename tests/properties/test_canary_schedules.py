"""The canary checkpoint under random schedules answers as one plain run does."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvward.audit.canary.checkpoint import write_canary_model
from kvward.lab.behaviour import SOUND
from kvward.lab.interface import EngineOptions
from kvward.lab.loading import LoadedModel, load_model
from lab_schedules import Ask, largest_error, run_schedule


@lru_cache(maxsize=1)
def canary() -> LoadedModel:
    # At the usual gain of 512 logits are in the thousands, where float32 itself steps by 5e-4;
    # the gain is the last factor of all, so a lower one tests the same arithmetic.
    with TemporaryDirectory() as folder:
        write_canary_model(Path(folder), gain=1.0)
        return load_model(Path(folder))


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    num_asks=st.integers(2, 6),
    spare_blocks=st.integers(0, 6),
    max_batch_tokens=st.sampled_from([3, 16, 64]),
    host_blocks=st.sampled_from([0, 50]),
)
def test_canary_answers_like_the_plain_model_under_any_schedule(
    seed: int, num_asks: int, spare_blocks: int, max_batch_tokens: int, host_blocks: int
) -> None:
    model = canary()
    random = np.random.default_rng(seed)
    prefix = tuple(random.integers(8, 264, 40).tolist())
    asks = [
        Ask(
            prompt=prefix[: int(random.integers(1, 41))]
            + tuple(random.integers(8, 264, int(random.integers(0, 30))).tolist()),
            max_tokens=int(random.integers(1, 6)),
            arrives=int(random.integers(0, 8)),
            salt=[None, "a", "b"][int(random.integers(3))],
        )
        for _ in range(num_asks)
    ]
    longest = max(len(ask.prompt) + ask.max_tokens for ask in asks)
    options = EngineOptions(
        num_blocks=max(2, -(-longest // 16) + spare_blocks),
        max_batch_tokens=max_batch_tokens,
        host_blocks=host_blocks,
    )
    answers, _ = run_schedule(
        model.weights, model.config, options, asks, behaviour=SOUND, ward=None
    )
    for ask, answer in zip(asks, answers, strict=True):
        assert len(answer.tokens) == ask.max_tokens
        assert largest_error(model.weights, model.config, ask, answer) < 1e-4
