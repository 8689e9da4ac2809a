"""Answers with drafts are the answers without, only in fewer steps."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

import lab_schedules
from kvward.events import EventCounter
from kvward.lab.behaviour import SOUND
from kvward.lab.draft import DraftState
from kvward.lab.interface import (
    EngineOptions,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenEvent,
    Ward,
)
from kvward.lab.model import Segment, forward, new_pages
from kvward.lab.scheduler import Scheduler
from kvward.lab.ward import EngineWard
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.terms import SharingLevel
from lab_load import mixed_load
from lab_models import plain_logits, random_weights, small_config
from lab_schedules import Answer, Ask, largest_error, run_schedule
from lab_witness import WitnessScheduler

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=1)
PLENTY = EngineOptions(block_tokens=4, num_blocks=200, max_batch_tokens=64)
SMALL = replace(PLENTY, num_blocks=50, max_batch_tokens=16, max_running_requests=8)
TIGHT = replace(PLENTY, num_blocks=18, max_running_requests=8, host_blocks=64)
SLOW_HOST = replace(SMALL, num_blocks=26, host_blocks=400, host_steps=3)
SLOTS = replace(SMALL, prefix_cache=False, num_slots=3)
NARROW = replace(SMALL, max_batch_tokens=3)
ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
SALTS = tuple(
    ISSUER.token(
        Scope(deployment="test", tenant=t, level=SharingLevel.TENANT, subject=b"", epoch=0)
    )
    for t in ("a", "b")
)
# Long answers: what has been said is then a fair guess at what comes.
ASKS = [replace(ask, max_tokens=4 * ask.max_tokens) for ask in mixed_load(seed=5, salts=SALTS)]


def run(
    options: EngineOptions, asks: list[Ask] = ASKS, *, ward: Ward | None = None
) -> tuple[list[Answer], WitnessScheduler]:
    with patch.object(lab_schedules, "Scheduler", WitnessScheduler):
        answers, scheduler = run_schedule(
            WEIGHTS, CONFIG, options, asks, behaviour=SOUND, ward=ward
        )
    assert isinstance(scheduler, WitnessScheduler)
    assert scheduler.num_available_blocks == options.num_blocks
    return answers, scheduler


@pytest.mark.parametrize("num_drafts", [1, 4])
@pytest.mark.parametrize(
    "options", [PLENTY, SMALL, TIGHT, SLOW_HOST, SLOTS, NARROW], ids=lambda o: f"{o.num_blocks}"
)
def test_answers_are_the_same_with_drafts_and_without(
    options: EngineOptions, num_drafts: int
) -> None:
    plain, _ = run(options)
    drafted, scheduler = run(replace(options, draft_tokens=num_drafts))
    for ask, without, answer in zip(ASKS, plain, drafted, strict=True):
        assert largest_error(WEIGHTS, CONFIG, ask, answer) < 1e-4
        if ask.leaves is None:
            assert answer.tokens == without.tokens
            assert answer.reason is FinishReason.LENGTH
    stats = scheduler.stats
    assert 0 < stats["accepted_drafts"] < stats["drafted_tokens"]
    assert not scheduler.foreign_reads
    assert scheduler.stale_reads == 0


def test_ward_refuses_nothing_to_an_engine_that_drafts() -> None:
    events = EventCounter()
    ward = EngineWard(ISSUER.token_key, events=events)
    drafted, scheduler = run(replace(SMALL, draft_tokens=3), ward=ward)
    assert events.counts() == {}
    assert scheduler.stats["accepted_drafts"] > 0
    for ask, answer in zip(ASKS, drafted, strict=True):
        assert largest_error(WEIGHTS, CONFIG, ask, answer) < 1e-4


def test_what_an_answer_leaves_is_reused_alike() -> None:
    first = Ask(prompt=tuple(range(10)), max_tokens=30, arrives=0, salt="a")
    plain, _ = run(PLENTY, [first])
    again = replace(first, prompt=(*first.prompt, *plain[0].tokens, 7), max_tokens=1, arrives=50)
    for options in (PLENTY, replace(PLENTY, draft_tokens=4)):
        answers, _ = run(options, [first, again])
        assert answers[1].cached_tokens == 36  # 39 tokens of the answer were computed
        assert largest_error(WEIGHTS, CONFIG, again, answers[1]) < 1e-4


def generate(
    sampling: SamplingParams, *, draft_tokens: int, eos: tuple[int, ...] = ()
) -> tuple[list[TokenEvent], Scheduler]:
    scheduler = Scheduler(
        WEIGHTS,
        replace(CONFIG, eos_token_ids=eos),
        replace(PLENTY, draft_tokens=draft_tokens),
        behaviour=SOUND,
        ward=None,
        manifest_digest=b"test",
    )
    events: list[TokenEvent] = []
    request = GenerationRequest(
        request_id="1", prompt_token_ids=tuple(range(12)), sampling=sampling, cache_salt=None
    )
    scheduler.submit(request, events.append)
    while scheduler.has_work:
        scheduler.step()
    return events, scheduler


def test_drafts_save_steps() -> None:
    bias = {7: 50.0}  # always the same word: every draft but the first few is right
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, logit_bias=bias)

    def num_steps(draft_tokens: int) -> int:
        with patch.object(Scheduler, "_run_segments", autospec=True) as ran:
            ran.side_effect = original
            events, _ = generate(sampling, draft_tokens=draft_tokens)
        assert [event.token_id for event in events] == [7] * 40
        return ran.call_count

    original = Scheduler._run_segments
    assert num_steps(0) == 40
    # 52 tokens in blocks of 4; a draft ends with the last block that its request has.
    assert num_steps(4) < 20


@pytest.mark.parametrize("seed", range(5))
def test_sampled_answer_is_the_same_with_drafts(seed: int) -> None:
    sampling = SamplingParams(max_tokens=60, temperature=0.3, seed=seed, ignore_eos=True)
    plain, _ = generate(sampling, draft_tokens=0)
    drafted, scheduler = generate(sampling, draft_tokens=4)
    assert [event.token_id for event in drafted] == [event.token_id for event in plain]
    assert scheduler.stats["accepted_drafts"] > 0


def test_answer_ends_with_its_end_token_even_in_the_middle_of_drafts() -> None:
    free, _ = generate(SamplingParams(max_tokens=60, ignore_eos=True), draft_tokens=0)
    said = [event.token_id for event in free]
    for end in sorted({token for token in said if token is not None}):
        sampling = SamplingParams(max_tokens=60)
        plain, _ = generate(sampling, draft_tokens=0, eos=(end,))
        drafted, _ = generate(sampling, draft_tokens=4, eos=(end,))
        assert [event.token_id for event in drafted] == said[: said.index(end) + 1]
        assert [event.token_id for event in plain] == said[: said.index(end) + 1]
        assert [event.finish_reason for event in drafted].count(FinishReason.STOP) == 1


def test_guesses_are_followers_then_the_most_frequent_and_teach_nothing() -> None:
    state = DraftState(scope="a")
    assert state.propose(3, num_tokens=4) == ()
    state.learn([3, 4, 5, 3, 6, 6])
    assert state.propose(3, num_tokens=3) == (6, 6, 6)
    assert state.propose(4, num_tokens=3) == (5, 3, 6)
    assert state.propose(9, num_tokens=2) == (3, 6)
    assert state.propose(9, num_tokens=2) == (3, 6)


def test_lane_is_begun_anew_by_the_next_request() -> None:
    asks = [
        Ask(prompt=(1, 2), max_tokens=3, arrives=0, salt="a"),
        Ask(prompt=(40, 41), max_tokens=1, arrives=20, salt="b"),
    ]
    lanes = []
    for some in (asks[:1], asks):
        answers, scheduler = run(replace(PLENTY, draft_tokens=2), some)
        states = scheduler._drafter._states
        assert states[1:] == [None] * (PLENTY.max_running_requests - 1)
        assert states[0] is not None
        lanes.append((states[0].scope, set(states[0]._counts)))
    assert lanes[0] == ("a", {1, 2, *answers[0].tokens})
    assert lanes[1] == ("b", {40, 41, *answers[1].tokens})


def test_erased_salt_has_nothing_in_any_lane() -> None:
    options = replace(PLENTY, draft_tokens=2)
    asks = [
        Ask(prompt=(1, 2), max_tokens=20, arrives=0, salt="b"),
        Ask(prompt=(3, 4), max_tokens=2, arrives=0, salt="a"),
        Ask(prompt=(5, 6), max_tokens=25, arrives=1, salt="a"),
    ]
    _, scheduler = run_schedule(
        WEIGHTS, CONFIG, options, asks, behaviour=SOUND, ward=None,
        at_moment={4: lambda s: s.erase("a") and None},
    )  # fmt: skip
    kept = [state.scope for state in scheduler._drafter._states if state is not None]
    assert kept == ["b"]


def test_engine_without_drafts_keeps_no_draft_state() -> None:
    _, scheduler = run(SMALL)
    assert not any(scheduler._drafter._states)
    assert scheduler.stats["drafted_tokens"] == 0


def test_logits_after_each_of_the_last_tokens_are_the_plain_ones() -> None:
    pages = new_pages(CONFIG, num_blocks=8, block_tokens=4)
    first, second = list(range(9)), list(range(30, 43))
    batch = [
        Segment(
            token_ids=np.array(tokens, np.intp),
            start=0,
            block_table=np.array(table, np.intp),
            num_logits=num_logits,
        )
        for tokens, table, num_logits in [(first, [0, 5, 2], 4), (second, [1, 3, 4, 6], 2)]
    ]
    logits = forward(WEIGHTS, CONFIG, pages, batch)
    assert logits.shape == (6, CONFIG.vocab)
    np.testing.assert_allclose(logits[:4], plain_logits(WEIGHTS, CONFIG, first)[-4:], atol=1e-4)
    np.testing.assert_allclose(logits[4:], plain_logits(WEIGHTS, CONFIG, second)[-2:], atol=1e-4)
