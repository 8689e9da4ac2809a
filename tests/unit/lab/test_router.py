"""Requests go where their prefix is, and no salt learns where another's went."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue

import pytest

from kvward.errors import UsageError
from kvward.lab.behaviour import SOUND, Behaviour
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.engine import LabEngine
from kvward.lab.interface import (
    EngineOptions,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenEvent,
)
from kvward.lab.router import PrefixRouter
from lab_models import random_weights, small_config

CONFIG = small_config(num_layers=1)
WEIGHTS = random_weights(CONFIG, seed=1)
OPTIONS = EngineOptions(block_tokens=4, num_blocks=40)
PROMPT = tuple(range(22))


@contextmanager
def routed(behaviour: Behaviour = SOUND) -> Iterator[Callable[..., TokenEvent]]:
    engines = [
        LabEngine(
            WEIGHTS, CONFIG, OPTIONS, behaviour=behaviour, ward=None, manifest_digest=b"model"
        )
        for _ in range(3)
    ]
    router = PrefixRouter(engines, block_tokens=4, behaviour=behaviour)
    router.start()
    count = 0

    def ask(salt: str | None, prompt: tuple[int, ...] = PROMPT) -> TokenEvent:
        nonlocal count
        count += 1
        events: Queue[TokenEvent] = Queue()
        request = GenerationRequest(
            request_id=str(count),
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=1),
            cache_salt=salt,
        )
        router.submit(request, events.put)
        return events.get(timeout=10)

    ask.router = router  # type: ignore[attr-defined]  # for those who need it
    try:
        yield ask
    finally:
        router.stop()


def test_same_prompt_returns_to_its_replica_and_others_take_turns() -> None:
    with routed() as ask:
        first, again = ask("a"), ask("a")
        assert (again.replica, again.routed_tokens, again.cached_tokens) == (first.replica, 20, 20)
        longer = ask("a", (*PROMPT, *range(10)))
        assert (longer.replica, longer.routed_tokens) == (first.replica, 20)
        others = {ask("a", (n, *PROMPT)).replica for n in range(30, 33)}
        assert others == {0, 1, 2}


def test_scope_missing_router_sends_salts_together_and_tells() -> None:
    with routed() as ask:
        first, other = ask("a"), ask("b")
        assert other.replica != first.replica
        assert other.routed_tokens == 0
    with routed(plant_defects(["scope-missing-router"], DEFECTS)) as ask:
        first, other = ask("a"), ask("b")
        assert other.replica == first.replica
        assert (other.routed_tokens, other.cached_tokens) == (20, 0)


def test_erased_salt_is_forgotten_by_router_and_replicas() -> None:
    with routed() as ask:
        ask("a"), ask("b")
        router: PrefixRouter = ask.router  # type: ignore[attr-defined]  # set above
        assert router.erase("a") == 5
        assert (ask("a").routed_tokens, ask("b").routed_tokens) == (0, 20)


def test_refused_and_cancelled_requests_are_not_counted_as_open() -> None:
    with routed() as ask:
        router: PrefixRouter = ask.router  # type: ignore[attr-defined]  # set above
        with pytest.raises(UsageError):
            ask("a", ())
        events: Queue[TokenEvent] = Queue()
        request = GenerationRequest(
            request_id="long",
            prompt_token_ids=PROMPT,
            sampling=SamplingParams(max_tokens=100),
            cache_salt=None,
        )
        router.submit(request, events.put)
        router.cancel("long")
        router.cancel("unknown")
        while events.get(timeout=10).finish_reason not in (
            FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.STOP,
        ):  # fmt: skip
            pass
        assert router._num_open == [0, 0, 0]
        router.load_adapter("ada", seed=1)
        router.load_base(seed=2)
        assert router.adapters == ("ada",)
        ask("a")
        assert router.stats()["prefill_tokens"] > 0
