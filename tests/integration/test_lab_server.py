"""The lab's server as the official client sees it, and as ill-behaved clients do."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import openai
import pytest

from kvward.audit.canary.checkpoint import write_canary_model
from kvward.lab.behaviour import SOUND
from kvward.lab.engine import LabEngine
from kvward.lab.interface import EngineOptions
from kvward.lab.loading import LoadedModel, load_model
from kvward.lab.server import create_app
from servers import running

FLOOR_GAP = 0.05


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("canary")
    write_canary_model(folder)
    return load_model(folder, name="canary")


@pytest.fixture(scope="module")
def lab(model: LoadedModel) -> Iterator[tuple[str, LabEngine]]:
    engine = LabEngine(
        model.weights,
        model.config,
        EngineOptions(num_blocks=600),
        behaviour=SOUND,
        ward=None,
        manifest_digest=model.manifest(block_tokens=16).digest(),
    )
    engine.start()
    try:
        with running(create_app(engine=engine, model=model, api_keys=None)) as url:
            yield url, engine
    finally:
        engine.stop()


@pytest.fixture
def client(lab: tuple[str, LabEngine]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=lab[0] + "/v1", api_key="any", max_retries=0) as ready:
        yield ready


def post(url: str, body: bytes | dict[str, object], path: str = "/v1/completions"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(url + path, data=content, headers={"content-type": "application/json"})
    with urlopen(request) as response:
        return json.loads(response.read())


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["canary"]


def test_completion_with_logprobs_and_usage(client: openai.OpenAI) -> None:
    prompt = "acorn zebra acorn acorn"
    answer = client.completions.create(
        model="canary", prompt=prompt, max_tokens=3, temperature=0, logprobs=5
    )
    choice = answer.choices[0]
    assert choice.text == " acorn acorn acorn"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == [" acorn"] * 3
    top = choice.logprobs.top_logprobs
    assert top is not None
    values = list(top[0].values())
    assert list(top[0])[:2] == [" acorn", " zebra"]
    assert values[1] > values[2] + FLOOR_GAP
    assert values[2] == values[3] == values[4]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4
    assert answer.usage.completion_tokens == 3


def test_repeated_prompt_reports_the_full_blocks_it_reused(client: openai.OpenAI) -> None:
    for num_words, expected in [(16, 0), (17, 16), (32, 16), (33, 32), (40, 32)]:
        prompt = " ".join(["acorn", "zebra"][n % 2] for n in range(num_words))
        for attempt in range(2):
            answer = client.completions.create(
                model="canary",
                prompt=prompt,
                max_tokens=1,
                extra_body={"cache_salt": f"length-{num_words}"},
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached = answer.usage.prompt_tokens_details.cached_tokens
            assert cached == (expected if attempt else 0)


def test_salts_do_not_share(client: openai.OpenAI) -> None:
    def cached(salt: str | None) -> int | None:
        answer = client.completions.create(
            model="canary",
            prompt="pepper " * 40,
            max_tokens=1,
            extra_body={} if salt is None else {"cache_salt": salt},
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens

    assert [cached(salt) for salt in ("a", "b", None)] == [0, 0, 0]
    assert [cached(salt) for salt in ("a", "b", None)] == [32, 32, 32]


def test_chat_and_its_stream_agree(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "acorn zebra acorn"}]
    whole = client.chat.completions.create(
        model="canary", messages=messages, max_tokens=4, temperature=0, logprobs=True,
        top_logprobs=2,
    )  # type: ignore[call-overload]  # fmt: skip
    stream = client.chat.completions.create(
        model="canary", messages=messages, max_tokens=4, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # type: ignore[call-overload]  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content == " acorn acorn acorn acorn"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == 4
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert len({c.id for c in chunks}) == 1
    content = whole.choices[0].logprobs.content
    assert [entry.token for entry in content] == [" acorn"] * 4
    assert [len(entry.top_logprobs) for entry in content] == [2] * 4


def test_logit_bias_chooses_the_word(client: openai.OpenAI, model: LoadedModel) -> None:
    zebra = model.tokenizer.encode("zebra")[0]
    answer = client.completions.create(
        model="canary", prompt="apple " * 400, max_tokens=1, temperature=0,
        logit_bias={str(model.tokenizer.encode("apple")[0]): -100, str(zebra): 100},
        logprobs=1,
    )  # fmt: skip
    choice = answer.choices[0]
    # The bias of 200 does not outweigh a context of one word, and the logprobs are raw.
    assert choice.logprobs is not None
    assert choice.logprobs.top_logprobs is not None
    assert list(choice.logprobs.top_logprobs[0]) == [" apple"]
    short = client.completions.create(
        model="canary", prompt="<user>", max_tokens=1, temperature=0, logit_bias={str(zebra): 100}
    )
    assert short.choices[0].text == " zebra"


def test_seed_repeats_a_sample_and_another_seed_differs(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        return (
            client.completions.create(
                model="canary", prompt="<user>", max_tokens=12, temperature=2, seed=seed
            )
            .choices[0]
            .text
        )

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [("acorn", " "), ([" acorn acorn"], ""), ("rn ac", " aco"), ("nothing", " acorn acorn acorn")],
    ids=str,
)
def test_stop_text_is_never_given_out_even_across_tokens(
    client: openai.OpenAI, stop: str | list[str], text: str, stream: bool
) -> None:
    answer = client.completions.create(
        model="canary", prompt="acorn", max_tokens=3, temperature=0, stop=stop, stream=stream
    )
    if stream:
        chunks = list(answer)  # type: ignore[arg-type]
        got = "".join(c.choices[0].text for c in chunks if c.choices)
        reason = chunks[-1].choices[0].finish_reason
    else:
        got, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert got == text
    assert reason == ("length" if stop == "nothing" else "stop")


async def test_many_clients_at_once_get_their_own_answers(lab: tuple[str, LabEngine]) -> None:
    words = ["acorn", "zebra", "apple", "water", "tiger", "piano", "lemon", "cloud"]
    async with openai.AsyncOpenAI(base_url=lab[0] + "/v1", api_key="x", max_retries=0) as client:

        async def ask(number: int) -> None:
            word = words[number % 8]
            answer = await client.completions.create(
                model="canary", prompt=f"{word} " * (20 + number), max_tokens=5, temperature=0
            )
            assert answer.choices[0].text == f" {word}" * 5
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == 20 + number

        await asyncio.gather(*(ask(number) for number in range(64)))


BAD: dict[str, tuple[bytes | dict[str, object], int, str]] = {
    "broken JSON": (b'{"model":', 400, "cannot be read"),
    "not an object": (b"[1]", 400, "cannot be read"),
    "no prompt": ({"model": "canary"}, 400, "prompt"),
    "prompt of a wrong type": ({"model": "canary", "prompt": 3}, 400, "prompt"),
    "prompt of mixed types": ({"model": "canary", "prompt": [1, "a"]}, 400, "prompt"),
    "two prompts": ({"model": "canary", "prompt": ["acorn", "zebra"]}, 400, "one prompt"),
    "empty prompt": ({"model": "canary", "prompt": ""}, 400, "empty"),
    "unknown token": ({"model": "canary", "prompt": [99999]}, 400, "does not know"),
    "negative token": ({"model": "canary", "prompt": [-1]}, 400, "does not know"),
    "unknown model": ({"model": "other", "prompt": "acorn"}, 404, "no model"),
    "too long": ({"model": "canary", "prompt": "acorn " * 9000}, 400, "context"),
    "no tokens wanted": ({"model": "canary", "prompt": "acorn", "max_tokens": 0}, 400, "token"),
    "too many wanted": (
        {"model": "canary", "prompt": "acorn", "max_tokens": 9000}, 400, "context"),
    "hot": ({"model": "canary", "prompt": "acorn", "temperature": 9}, 400, "temperature"),
    "two choices": ({"model": "canary", "prompt": "acorn", "n": 2}, 400, "one choice"),
    "logprobs": ({"model": "canary", "prompt": "acorn", "logprobs": 21}, 400, "logprobs"),
    "bias": ({"model": "canary", "prompt": "acorn", "logit_bias": {"x": 1}}, 400, "token id"),
    "large bias": ({"model": "canary", "prompt": "acorn", "logit_bias": {"1": 101}}, 400, "bias"),
    "empty stop": ({"model": "canary", "prompt": "acorn", "stop": ""}, 400, "stop"),
    "empty salt": ({"model": "canary", "prompt": "acorn", "cache_salt": ""}, 400, "salt"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_request_is_answered_in_the_protocols_shape(
    lab: tuple[str, LabEngine], name: str
) -> None:
    from urllib.error import HTTPError

    body, status, words = BAD[name]
    for streaming in (False, True) if isinstance(body, dict) else (False,):
        sent = body | {"stream": True} if streaming and isinstance(body, dict) else body
        with pytest.raises(HTTPError) as caught:
            post(lab[0], sent)
        with caught.value as error:
            assert error.code == status
            answer = json.loads(error.read())["error"]
        assert set(answer) == {"message", "type", "param", "code"}
        assert words in answer["message"]


def test_prompt_that_fits_the_context_but_not_the_memory_is_refused(model: LoadedModel) -> None:
    engine = LabEngine(model.weights, model.config, EngineOptions(num_blocks=4), behaviour=SOUND,
                       ward=None, manifest_digest=b"")  # fmt: skip
    engine.start()
    try:
        with (
            running(create_app(engine=engine, model=model, api_keys=None)) as url,
            openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as client,
        ):
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError, match="at most 64"):
                    client.completions.create(
                        model="canary", prompt="acorn " * 64, max_tokens=1, stream=stream
                    )
            fits = client.completions.create(
                model="canary", prompt="acorn " * 60, max_tokens=50, temperature=0
            )
            assert fits.usage is not None
            assert fits.usage.total_tokens == 64
    finally:
        engine.stop()


def test_wrong_key_route_and_method_are_refused(model: LoadedModel) -> None:
    engine = LabEngine(model.weights, model.config, EngineOptions(), behaviour=SOUND, ward=None,
                       manifest_digest=b"")  # fmt: skip
    engine.start()
    try:
        app = create_app(engine=engine, model=model, api_keys=frozenset({"right"}))
        with running(app) as url:
            with (
                openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0) as client,
                pytest.raises(openai.AuthenticationError),
            ):
                client.models.list()
            with openai.OpenAI(base_url=url + "/v1", api_key="right", max_retries=0) as client:
                assert client.models.list().data
                with pytest.raises(openai.NotFoundError):
                    client.embeddings.create(model="canary", input="x")
    finally:
        engine.stop()


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_vanishes_frees_its_blocks(lab: tuple[str, LabEngine], stream: bool) -> None:
    url, engine = lab
    parts = urlsplit(url)
    body = json.dumps(
        {"model": "canary", "prompt": "acorn " * 100, "max_tokens": 8000, "stream": stream}
    ).encode()
    before = engine.stats().get("cancelled_requests", 0)
    raw = socket.create_connection((parts.hostname, parts.port))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    raw.sendall(head.encode() + body)
    if stream:
        raw.recv(100)
    else:
        time.sleep(0.2)
    raw.close()
    deadline = time.monotonic() + 10
    while engine.stats().get("cancelled_requests", 0) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine.stats()["cancelled_requests"] == before + 1
    assert post(url, {"model": "canary", "prompt": "acorn", "max_tokens": 1, "temperature": 0})


def test_step_that_fails_ends_its_requests_and_nothing_else(model: LoadedModel) -> None:
    engine = LabEngine(model.weights, model.config, EngineOptions(), behaviour=SOUND, ward=None,
                       manifest_digest=b"")  # fmt: skip
    engine.start()
    try:
        with (
            running(create_app(engine=engine, model=model, api_keys=None)) as url,
            openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as client,
        ):
            engine._scheduler._memory.resident.pages = None  # type: ignore[assignment]
            with pytest.raises(openai.InternalServerError, match="failed in a step"):
                client.completions.create(model="canary", prompt="acorn", max_tokens=1)
            answer = client.completions.create(
                model="canary", prompt="acorn", max_tokens=1, temperature=0
            )
            assert answer.choices[0].text == " acorn"
            assert engine.stats()["failed_steps"] == 1
    finally:
        engine.stop()


def test_engine_that_was_stopped_says_so(model: LoadedModel, tmp_path: Path) -> None:
    engine = LabEngine(model.weights, model.config, EngineOptions(), behaviour=SOUND, ward=None,
                       manifest_digest=b"")  # fmt: skip
    with (
        running(create_app(engine=engine, model=model, api_keys=None)) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.InternalServerError, match="not running"),
    ):
        client.completions.create(model="canary", prompt="acorn", max_tokens=1)
