"""The engine in its thread: every request ends exactly once, whatever happens."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from kvward.errors import EngineProtocolError, UsageError
from kvward.lab.behaviour import SOUND
from kvward.lab.engine import LabEngine
from kvward.lab.interface import (
    EngineOptions,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TokenEvent,
)
from lab_models import plain_logits, random_weights, small_config

CONFIG = small_config(num_layers=1)
WEIGHTS = random_weights(CONFIG, seed=1)
WAIT_S = 20.0
NEVER_ENDS = 240  # more tokens than a test waits for


class Answer:
    """Collects the events of a request; counts endings."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.began = threading.Event()
        self.ended = threading.Event()
        self.endings = 0

    def __call__(self, event: TokenEvent) -> None:
        self.events.append(event)
        self.began.set()
        if event.finish_reason is not None:
            self.endings += 1
            self.ended.set()

    @property
    def reason(self) -> FinishReason | None:
        return self.events[-1].finish_reason

    def wait(self) -> "Answer":
        assert self.ended.wait(WAIT_S), "the request never ended"
        return self


def request(
    name: str, tokens: tuple[int, ...] = (1, 2, 3), **sampling: object
) -> GenerationRequest:
    values = {"max_tokens": 3, "ignore_eos": True} | sampling
    return GenerationRequest(
        request_id=name,
        prompt_token_ids=tokens,
        sampling=SamplingParams(**values),  # type: ignore[arg-type]
        cache_salt=None,
    )


def new_engine(options: EngineOptions | None = None) -> LabEngine:
    return LabEngine(
        WEIGHTS,
        CONFIG,
        options or EngineOptions(block_tokens=4, num_blocks=80),
        behaviour=SOUND,
        ward=None,
        manifest_digest=b"model",
    )


@pytest.fixture
def engine() -> Iterator[LabEngine]:
    made = new_engine()
    made.start()
    yield made
    made.stop()


def ask(engine: LabEngine, asked: GenerationRequest) -> Answer:
    answer = Answer()
    engine.submit(asked, answer)
    return answer


def test_request_is_answered_like_the_plain_model(engine: LabEngine) -> None:
    answer = ask(engine, request("a", (5, 6, 7, 8, 9), max_tokens=4)).wait()
    tokens = [event.token_id or 0 for event in answer.events]
    plain = plain_logits(WEIGHTS, CONFIG, [5, 6, 7, 8, 9, *tokens[:-1]])[4:]
    assert tokens == plain.argmax(axis=1).tolist()
    assert answer.reason is FinishReason.LENGTH


def test_requests_from_many_threads_are_all_answered_once(engine: LabEngine) -> None:
    answers: list[Answer] = []

    def client(number: int) -> None:
        for turn in range(8):
            name = f"{number}-{turn}"
            answer = ask(engine, request(name, (number, turn, 3, 4, 5, 6), max_tokens=5))
            answers.append(answer)
            if turn % 3 == 2:
                engine.cancel(name)
            answer.wait()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(answers) == 48
    assert {answer.endings for answer in answers} == {1}
    assert engine._scheduler.num_available_blocks == 80


def test_cancelled_request_ends_as_cancelled_and_others_go_on(engine: LabEngine) -> None:
    long = ask(engine, request("long", max_tokens=NEVER_ENDS))
    other = ask(engine, request("other", max_tokens=10))
    assert long.began.wait(WAIT_S)
    engine.cancel("long")
    assert long.wait().reason in {FinishReason.CANCELLED, FinishReason.LENGTH}
    assert other.wait().reason is FinishReason.LENGTH


def test_stop_ends_open_and_waiting_requests_with_an_error() -> None:
    engine = new_engine(EngineOptions(block_tokens=4, num_blocks=80, max_running_requests=1))
    hold = threading.Event()
    engine.start()
    first = Answer()

    def slow(event: TokenEvent) -> None:
        first(event)
        hold.wait(WAIT_S)

    engine.submit(request("first", max_tokens=NEVER_ENDS), slow)
    waiting = ask(engine, request("waiting"))
    assert first.began.wait(WAIT_S)
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    while not engine._stopping:
        pass
    hold.set()
    stopper.join(WAIT_S)
    for answer in (first, waiting):
        assert answer.wait().reason is FinishReason.ERROR
        assert "stopped" in (answer.events[-1].error or "")
        assert answer.endings == 1
    assert engine._scheduler.num_available_blocks == 80


def test_engine_that_does_not_run_refuses() -> None:
    engine = new_engine()
    with pytest.raises(EngineProtocolError, match="not running"):
        engine.submit(request("early"), Answer())
    engine.start()
    engine.stop()
    engine.stop()
    with pytest.raises(EngineProtocolError, match="not running"):
        engine.submit(request("late"), Answer())


def test_request_that_can_never_run_is_refused_to_the_caller(engine: LabEngine) -> None:
    with pytest.raises(UsageError, match="does not know"):
        engine.submit(request("x", (999,)), Answer())
    assert ask(engine, request("y")).wait().reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "sizes",
    [{"num_blocks": 1}, {"block_tokens": 0}, {"max_batch_tokens": 0}, {"max_running_requests": 0}],
)
def test_engine_without_room_for_anything_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        new_engine(EngineOptions(**sizes))


def break_next_step(engine: LabEngine) -> None:
    """Let the next step fail as an error in the model would."""
    engine._scheduler._memory.resident.pages = None  # type: ignore[assignment]


def test_failed_step_ends_its_requests_and_the_engine_goes_on(engine: LabEngine) -> None:
    before = ask(engine, request("before", (1, 2, 3, 4, 5, 6))).wait()
    break_next_step(engine)
    failed = ask(engine, request("failed")).wait()
    assert failed.reason is FinishReason.ERROR
    after = ask(engine, request("after", (1, 2, 3, 4, 5, 6))).wait()
    assert after.events[-1].cached_tokens == 0  # the cache of a failed engine is not trusted
    assert [e.token_id for e in after.events] == [e.token_id for e in before.events]
    stats = engine.stats()
    assert stats["failed_steps"] == 1
    assert stats["prefill_tokens"] >= 12, "counters go on after a failure"


def still_answers(engine: LabEngine) -> bool:
    try:
        return ask(engine, request("probe")).ended.wait(3)
    except EngineProtocolError:
        return False


def refuse_listening(_: TokenEvent) -> None:
    raise RuntimeError("this listener is broken")


@pytest.mark.parametrize(
    "harm",
    [
        lambda engine: engine.submit(request("x", temperature=1.0, seed=-1), Answer()),
        lambda engine: engine.submit(request("x"), refuse_listening),
    ],
    ids=["negative seed", "listener that raises"],
)
def test_no_single_request_can_end_the_engine(harm: Callable[[LabEngine], None]) -> None:
    engine = new_engine()
    engine.start()
    try:
        with contextlib.suppress(UsageError):  # refused to the one who asked: as good
            harm(engine)
        assert still_answers(engine)
    finally:
        engine.stop()


@pytest.mark.parametrize(
    "parameter", [{"logit_bias": {999: 1.0}}, {"top_logprobs": 101}], ids=lambda p: next(iter(p))
)
def test_bad_sampling_parameter_does_not_end_other_requests(parameter: dict[str, object]) -> None:
    engine = new_engine()
    other, submitted = Answer(), threading.Event()

    def listen(event: TokenEvent) -> None:
        other(event)
        submitted.wait(WAIT_S)  # so that both run together

    engine.start()
    try:
        engine.submit(request("other", max_tokens=5), listen)
        assert other.began.wait(WAIT_S)
        bad = None
        with contextlib.suppress(UsageError):
            bad = ask(engine, request("bad", **parameter))
        submitted.set()
        if bad is not None:
            bad.wait()
        assert other.wait().reason is FinishReason.LENGTH
    finally:
        engine.stop()


def test_submit_that_meets_a_stop_is_refused_or_ended() -> None:
    engine = new_engine()
    engine.start()
    answer = Answer()
    check = engine._scheduler.check

    def stop_first(checked: GenerationRequest) -> None:
        check(checked)
        engine.stop()

    engine._scheduler.check = stop_first  # type: ignore[method-assign]
    try:
        engine.submit(request("x"), answer)
    except EngineProtocolError:
        return
    assert answer.ended.wait(1)


def test_request_queued_while_the_thread_is_busy_with_another_is_ended_by_a_stop() -> None:
    engine = new_engine()
    busy, go_on = threading.Event(), threading.Event()
    take = engine._scheduler.submit

    def take_slowly(asked: GenerationRequest, on_event: Callable[[TokenEvent], None]) -> None:
        busy.set()
        go_on.wait(WAIT_S)
        take(asked, on_event)

    engine._scheduler.submit = take_slowly  # type: ignore[method-assign]
    engine.start()
    first = ask(engine, request("first"))
    assert busy.wait(WAIT_S)
    second = ask(engine, request("second"))
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    while not engine._stopping:
        pass
    go_on.set()
    stopper.join(WAIT_S)
    assert first.reason is FinishReason.ERROR
    assert second.endings == 1, "this client waits for ever"
