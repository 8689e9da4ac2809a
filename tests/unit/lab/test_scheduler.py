"""Hits, budgets, preemption and cancellation, request by request."""

import numpy as np
import pytest

from kvward.errors import UsageError
from kvward.lab.behaviour import SOUND
from kvward.lab.interface import (
    EngineOptions,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenEvent,
)
from kvward.lab.scheduler import Scheduler
from lab_models import plain_logits, random_weights, small_config

CONFIG = small_config(num_layers=1)
WEIGHTS = random_weights(CONFIG, seed=1)
OPTIONS = EngineOptions(block_tokens=4, num_blocks=40, max_batch_tokens=16)


def new_scheduler(options: EngineOptions = OPTIONS, *, model: bytes = b"model") -> Scheduler:
    return Scheduler(WEIGHTS, CONFIG, options, behaviour=SOUND, ward=None, manifest_digest=model)


def prompt(length: int, *, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 50, length).tolist())


def submit(
    scheduler: Scheduler,
    name: str,
    tokens: tuple[int, ...],
    *,
    max_tokens: int = 1,
    salt: str | None = None,
    temperature: float = 0.0,
    seed: int | None = None,
) -> list[TokenEvent]:
    events: list[TokenEvent] = []
    request = GenerationRequest(
        request_id=name,
        prompt_token_ids=tokens,
        sampling=SamplingParams(
            max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=True
        ),
        cache_salt=salt,
    )
    scheduler.check(request)
    scheduler.submit(request, events.append)
    return events


def drain(scheduler: Scheduler) -> None:
    for _ in range(2_000):
        if not scheduler.has_work:
            return
        scheduler.step()
    pytest.fail("the scheduler does not come to an end")


def cached(scheduler: Scheduler, tokens: tuple[int, ...], *, salt: str | None = None) -> int:
    events = submit(scheduler, "probe", tokens, salt=salt)
    drain(scheduler)
    return events[-1].cached_tokens


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 12, 13, 31])
def test_repeated_prompt_hits_all_its_full_blocks_but_never_its_last_token(length: int) -> None:
    scheduler = new_scheduler()
    assert cached(scheduler, prompt(length)) == 0
    assert cached(scheduler, prompt(length)) == (length - 1) // 4 * 4


def test_hit_ends_where_the_prompts_part() -> None:
    scheduler = new_scheduler()
    tokens = prompt(20)
    cached(scheduler, tokens)
    other = (*tokens[:10], (tokens[10] + 1) % 50, *tokens[11:])
    assert cached(scheduler, other) == 8
    shifted = ((tokens[0] + 1) % 50, *tokens[1:])
    assert cached(scheduler, shifted) == 0


def test_generated_tokens_are_reused_by_the_next_turn() -> None:
    scheduler = new_scheduler()
    tokens = prompt(8)
    events = submit(scheduler, "turn", tokens, max_tokens=6)
    drain(scheduler)
    answer = tuple(event.token_id or 0 for event in events)
    # The last generated token was never computed: 13 of 14 are in blocks, 12 in full ones.
    assert cached(scheduler, (*tokens, *answer, 1, 2)) == 12


def test_every_salt_and_no_salt_are_scopes_of_their_own() -> None:
    scheduler = new_scheduler()
    tokens = prompt(20)
    for salt in (None, "", "a", "b", "None"):
        assert cached(scheduler, tokens, salt=salt) == 0
    for salt in (None, "", "a", "b", "None"):
        assert cached(scheduler, tokens, salt=salt) == 16


def test_nothing_is_reused_when_the_cache_is_off() -> None:
    options = EngineOptions(block_tokens=4, num_blocks=40, prefix_cache=False, host_blocks=10)
    scheduler = new_scheduler(options)
    for _ in range(3):
        assert cached(scheduler, prompt(20)) == 0
    assert scheduler.num_available_blocks == 40


def test_cached_prefix_is_not_computed_again() -> None:
    scheduler = new_scheduler()
    cached(scheduler, prompt(33))
    before = scheduler.stats["prefill_tokens"]
    cached(scheduler, prompt(33))
    assert scheduler.stats["prefill_tokens"] - before == 1


def test_no_step_computes_more_than_its_budget_and_generation_comes_first() -> None:
    scheduler = new_scheduler(EngineOptions(block_tokens=4, num_blocks=60, max_batch_tokens=6))
    short = submit(scheduler, "short", prompt(2), max_tokens=20)
    scheduler.step()
    submit(scheduler, "long", prompt(50, seed=1))
    while scheduler.has_work:
        before = scheduler.stats["prefill_tokens"] + scheduler.stats["decode_tokens"]
        told = len(short)
        scheduler.step()
        computed = scheduler.stats["prefill_tokens"] + scheduler.stats["decode_tokens"] - before
        assert computed <= 6
        if told < 20:
            assert len(short) == told + 1, "a long prompt held up a request that generates"


def test_identical_prompts_at_once_each_compute_their_own_and_agree() -> None:
    scheduler = new_scheduler()
    streams = [submit(scheduler, str(i), prompt(16), max_tokens=4) for i in range(3)]
    drain(scheduler)
    answers = [[event.token_id for event in events] for events in streams]
    assert answers[0] == answers[1] == answers[2]
    assert scheduler.num_available_blocks == OPTIONS.num_blocks


def test_youngest_is_preempted_and_keeps_what_it_has_generated() -> None:
    scheduler = new_scheduler(EngineOptions(block_tokens=4, num_blocks=10, max_batch_tokens=64))
    old = submit(scheduler, "old", prompt(12), max_tokens=20)
    young = submit(scheduler, "young", prompt(12, seed=1), max_tokens=20)
    drain(scheduler)
    assert scheduler.stats["preemptions"] > 0
    for tokens, events in ((prompt(12), old), (prompt(12, seed=1), young)):
        answer = [event.token_id or 0 for event in events]
        assert len(answer) == 20
        assert [event.finish_reason for event in events[:-1]] == [None] * 19
        plain = plain_logits(WEIGHTS, CONFIG, [*tokens, *answer[:-1]])[11:]
        assert answer == plain.argmax(axis=1).tolist()


def test_preemption_does_not_change_what_a_seed_draws() -> None:
    answers = []
    for num_blocks in (10, 40):
        options = EngineOptions(block_tokens=4, num_blocks=num_blocks, max_batch_tokens=64)
        scheduler = new_scheduler(options)
        submit(scheduler, "old", prompt(12), max_tokens=20)
        young = submit(
            scheduler, "young", prompt(12, seed=1), max_tokens=20, temperature=1.0, seed=4
        )
        drain(scheduler)
        answers.append([event.token_id for event in young])
        assert (scheduler.stats["preemptions"] > 0) is (num_blocks == 10)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("steps", range(12))
def test_cancelling_at_any_step_leaves_no_block_behind_and_no_further_event(steps: int) -> None:
    options = EngineOptions(block_tokens=4, num_blocks=12, max_batch_tokens=7)
    scheduler = new_scheduler(options)
    gone = submit(scheduler, "gone", prompt(20), max_tokens=5)
    stays = submit(scheduler, "stays", prompt(20), max_tokens=5)
    for _ in range(steps):
        scheduler.step()
    finished = bool(gone) and gone[-1].finish_reason is not None
    scheduler.cancel("gone")
    scheduler.cancel("gone")
    if not finished:
        assert gone[-1].finish_reason is FinishReason.CANCELLED
        assert gone[-1].token_id is None
    told = len(gone)
    drain(scheduler)
    assert len(gone) == told
    assert stays[-1].finish_reason is FinishReason.LENGTH
    assert scheduler.num_available_blocks == options.num_blocks


def test_cancelling_an_unknown_request_is_ignored() -> None:
    scheduler = new_scheduler()
    events = submit(scheduler, "known", prompt(5))
    scheduler.cancel("unknown")
    drain(scheduler)
    assert events[-1].finish_reason is FinishReason.LENGTH
    assert scheduler.stats["cancelled_requests"] == 0


def test_failing_all_ends_every_request_once_and_frees_everything() -> None:
    scheduler = new_scheduler(EngineOptions(block_tokens=4, num_blocks=10, max_batch_tokens=8))
    streams = [submit(scheduler, str(i), prompt(20, seed=i), max_tokens=5) for i in range(4)]
    scheduler.step()
    scheduler.fail_all("because")
    for events in streams:
        assert [e.finish_reason for e in events if e.finish_reason] == [FinishReason.ERROR]
        assert events[-1].error == "because"
    assert not scheduler.has_work
    assert scheduler.num_available_blocks == 10


@pytest.mark.parametrize(
    ("tokens", "words"),
    [((), "empty"), ((50,), "does not know"), ((-1,), "does not know"), ((1,) * 40, "at most 40")],
    ids=["empty", "too large", "negative", "too long"],
)
def test_request_that_can_never_run_is_refused(tokens: tuple[int, ...], words: str) -> None:
    scheduler = new_scheduler(EngineOptions(block_tokens=4, num_blocks=10))
    with pytest.raises(UsageError, match=words):
        submit(scheduler, "x", tokens)
    assert not scheduler.has_work


def test_longest_request_that_is_let_in_runs_to_the_end_of_memory() -> None:
    scheduler = new_scheduler(EngineOptions(block_tokens=4, num_blocks=10))
    events = submit(scheduler, "x", prompt(39), max_tokens=50)
    drain(scheduler)
    assert len(events) == 1
    assert events[0].finish_reason is FinishReason.LENGTH


def test_evicted_prefix_comes_back_from_the_host_under_its_own_salt_only() -> None:
    options = EngineOptions(block_tokens=4, num_blocks=8, host_blocks=50)
    scheduler = new_scheduler(options)
    tokens = prompt(20)
    cached(scheduler, tokens, salt="a")
    for seed in range(1, 4):
        cached(scheduler, prompt(28, seed=seed), salt="a")
    assert scheduler.stats["evicted_blocks"] > 0
    assert cached(scheduler, tokens, salt="b") == 0
    assert scheduler.stats["restored_blocks"] == 0
    assert cached(scheduler, tokens, salt="a") == 16
    assert scheduler.stats["restored_blocks"] == 4
