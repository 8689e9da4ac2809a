"""An answer reaches the wrong request with the defect, and never without it.

Ground truth: which token the engine made for which request.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from kvward.lab.behaviour import SOUND, Behaviour, Slip
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import FinishReason, GenerationRequest, SamplingParams, TokenEvent
from kvward.lab.server.answers import AnswerCache
from kvward.lab.server.bridge import Bridge
from kvward.lab.server.door import Door
from kvward.lab.server.wire import BadRequestError

GREEDY = SamplingParams(max_tokens=1)


def request(name: str, *, salt: str | None = None, prompt: tuple[int, ...] = (1, 2, 3)):
    return GenerationRequest(
        request_id=name, prompt_token_ids=prompt, sampling=GREEDY, cache_salt=salt
    )


class HandEngine:
    """An engine whose events are made by hand; each token is the number of its request."""

    def __init__(self) -> None:
        self.listeners: dict[str, Callable[[TokenEvent], None]] = {}
        self.cancelled: list[str] = []

    def submit(self, asked: GenerationRequest, on_event: Callable[[TokenEvent], None]) -> None:
        self.listeners[asked.request_id] = on_event

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def make(self, name: str, *, last: bool) -> None:
        self.listeners[name](
            TokenEvent(
                request_id=name,
                token_id=int(name),
                logprob=None,
                top_logprobs=None,
                cached_tokens=int(name),
                finish_reason=FinishReason.LENGTH if last else None,
            )
        )


async def collect(events: AsyncIterator[TokenEvent]) -> list[TokenEvent]:
    return [event async for event in events]


def new_bridge(behaviour: Behaviour) -> tuple[HandEngine, Bridge]:
    engine = HandEngine()
    return engine, Bridge(engine, behaviour=behaviour)  # type: ignore[arg-type]  # what it uses


async def late_token(behaviour: Behaviour) -> list[int | None]:
    """Cancel one request, begin another, and let a token of the first come late."""
    engine, bridge = new_bridge(behaviour)
    first = bridge.generate(request("1"))
    waiting = asyncio.create_task(anext(first))  # type: ignore[arg-type]  # a coroutine
    await asyncio.sleep(0)
    engine.make("1", last=False)
    await waiting
    await first.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert engine.cancelled == ["1"]
    second = asyncio.create_task(collect(bridge.generate(request("2"))))
    await asyncio.sleep(0)
    engine.make("1", last=False)
    engine.make("2", last=True)
    return [event.token_id for event in await second]


async def test_request_id_recycled_delivers_a_late_token_to_the_next_request() -> None:
    assert await late_token(SOUND) == [2]
    assert await late_token(plant_defects(["request-id-recycled"], DEFECTS)) == [1, 2]


async def test_request_id_recycled_keeps_its_rate() -> None:
    behaviour = plant_defects(["request-id-recycled:0.1"], DEFECTS, seed=2)
    answers = [await late_token(behaviour) for _ in range(400)]
    struck = sum(answer == [1, 2] for answer in answers)
    assert behaviour.opportunities[Slip.REQUEST_ID_RECYCLED] == 400
    assert struck == behaviour.strikes[Slip.REQUEST_ID_RECYCLED]
    assert abs(struck - 40) < 5 * math.sqrt(36)


async def together(bridge: Bridge, engine: HandEngine, names: list[str]) -> dict[str, TokenEvent]:
    tasks = {name: asyncio.create_task(collect(bridge.generate(request(name)))) for name in names}
    await asyncio.sleep(0)
    for name in names:
        engine.make(name, last=True)
    return {name: (await task)[-1] for name, task in tasks.items()}


async def test_stream_mixed_exchanges_tokens_and_nothing_else() -> None:
    names = ["1", "2", "3"]
    for behaviour, num_wrong in [(SOUND, 0), (plant_defects(["stream-mixed"], DEFECTS), 2)]:
        engine, bridge = new_bridge(behaviour)
        got = await together(bridge, engine, names)
        assert sorted(str(event.token_id) for event in got.values()) == names
        wrong = [name for name, event in got.items() if event.token_id != int(name)]
        assert len(wrong) == num_wrong
        assert all(event.cached_tokens == int(name) for name, event in got.items())


async def test_stream_mixed_needs_company_and_keeps_its_rate() -> None:
    engine, bridge = new_bridge(behaviour := plant_defects(["stream-mixed:0.05"], DEFECTS, seed=4))
    for _ in range(50):
        assert (await together(bridge, engine, ["1"]))["1"].token_id == 1
    assert behaviour.opportunities[Slip.STREAM_MIXED] == 0
    wrong = 0
    for _ in range(600):
        got = await together(bridge, engine, ["1", "2"])
        wrong += got["1"].token_id != 1
    assert behaviour.opportunities[Slip.STREAM_MIXED] == 600
    assert wrong == behaviour.strikes[Slip.STREAM_MIXED]
    assert abs(wrong - 30) < 5 * math.sqrt(30)


async def test_failed_submission_leaves_no_mailbox_behind() -> None:
    engine, bridge = new_bridge(SOUND)

    def refuse(*_: object) -> None:
        raise BadRequestError("No.")

    engine.submit = refuse  # type: ignore[method-assign]  # refuses everything
    with pytest.raises(BadRequestError):
        await collect(bridge.generate(request("1")))
    assert bridge._unused == [0]


async def kept_for(
    asked: GenerationRequest, *others: GenerationRequest, behaviour: Behaviour
) -> tuple[list[bool], list[bool]]:
    """Answer one request; return which of the others are served its answer, and told so."""
    cache = AnswerCache(10, behaviour=behaviour)
    engine, bridge = new_bridge(SOUND)
    task = asyncio.create_task(collect(cache.keep(asked, bridge.generate(asked))))
    await asyncio.sleep(0)
    engine.make(asked.request_id, last=True)
    events = await task
    served = [cache.find(other) for other in others]
    assert all(found in (None, tuple(events)) for found in served)
    return [found is not None for found in served], [cache.knows(other) for other in others]


LONG = tuple(range(30))
SAME = request("2", salt="a", prompt=LONG)
OTHERS = (
    SAME,
    replace(SAME, cache_salt="b"),
    replace(SAME, cache_salt="b", prompt_token_ids=(7, *LONG[1:])),
    replace(SAME, cache_salt="b", sampling=SamplingParams(max_tokens=2)),
)


@pytest.mark.parametrize(
    ("names", "served", "told"),
    [
        ((), [True, False, False, False], [True, False, False, False]),
        (("response-cache-shared",), [True, True, False, False], [True, True, False, False]),
        (("response-cache-tail",), [True, True, True, False], [True, True, True, False]),
        (("cache-header-global",), [True, False, False, False], [True, True, False, False]),
    ],
    ids=str,
)
async def test_answers_are_kept_for_whom_they_should_and_the_defect_for_more(
    names: tuple[str, ...], served: list[bool], told: list[bool]
) -> None:
    asked = replace(SAME, request_id="1")
    behaviour = plant_defects(names, DEFECTS)
    assert await kept_for(asked, *OTHERS, behaviour=behaviour) == (served, told)


async def test_sample_without_a_seed_and_unfinished_answer_are_not_kept() -> None:
    sampled = replace(SAME, request_id="1", sampling=SamplingParams(max_tokens=1, temperature=1.0))
    assert (await kept_for(sampled, sampled, behaviour=SOUND))[0] == [False]
    seeded = replace(
        SAME, request_id="1", sampling=SamplingParams(max_tokens=1, temperature=1.0, seed=3)
    )
    assert (await kept_for(seeded, seeded, behaviour=SOUND))[0] == [True]
    cache = AnswerCache(10, behaviour=SOUND)
    engine, bridge = new_bridge(SOUND)
    events = cache.keep(SAME, bridge.generate(SAME))
    waiting = asyncio.create_task(anext(events))  # type: ignore[arg-type]  # a coroutine
    await asyncio.sleep(0)
    engine.make("2", last=False)
    await waiting
    await events.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert engine.cancelled == ["2"]
    assert cache.find(SAME) is None


async def test_answers_of_a_salt_are_erased_and_the_longest_unused_is_dropped() -> None:
    cache = AnswerCache(2, behaviour=SOUND)
    engine, bridge = new_bridge(SOUND)
    asked = [replace(SAME, request_id=str(n), cache_salt=salt) for n, salt in enumerate("abc")]
    for one in asked:
        task = asyncio.create_task(collect(cache.keep(one, bridge.generate(one))))
        await asyncio.sleep(0)
        engine.make(one.request_id, last=True)
        await task
    assert [cache.find(one) is not None for one in asked] == [False, True, True]
    assert cache.erase("b") == 1
    assert [cache.find(one) is not None for one in asked] == [False, False, True]


def test_salt_from_caller_takes_the_place_of_the_key() -> None:
    keys = frozenset({"one", "two"})
    for names, meets in [((), False), (("salt-from-caller",), True)]:
        door = Door(keys, scope_by_key=True, behaviour=plant_defects(names, DEFECTS))
        assert (door.salt(b"one", "x") == door.salt(b"two", "x")) is meets
        assert door.salt(b"one", None) != door.salt(b"two", None)
        assert door.salt(b"one", "x") != door.salt(b"one", "y")
        assert door.salt(b"one", None) != door.salt(b"one", "")
    forged = Door(keys, scope_by_key=True, behaviour=SOUND).salt(b"two", None)
    sound = Door(keys, scope_by_key=True, behaviour=SOUND)
    assert sound.salt(b"one", forged) != forged


def test_door_lets_in_who_has_a_key() -> None:
    door = Door(frozenset({"one"}), scope_by_key=False, behaviour=SOUND)
    assert door.let_in([(b"authorization", b"Bearer one")]) == b"one"
    assert door.salt(b"one", "x") == "x"
    with pytest.raises(BadRequestError, match="not known"):
        door.let_in([(b"authorization", b"Bearer two")])
    assert Door(None, scope_by_key=False, behaviour=SOUND).let_in([]) == b""
