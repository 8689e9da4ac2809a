"""The auditor's client against servers that do not behave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvward.audit.exchange import Call, Ending
from kvward.audit.target import PRESETS, Target
from kvward.audit.target import client as client_module
from kvward.cli.process import free_port
from kvward.errors import TargetError, TargetRefusedError, TargetUnreachableError
from servers import running

MODELS = b'{"data":[{"id":"m"}]}'
TOKEN = {"id": "r", "choices": [{"text": " acorn", "logprobs": {"top_logprobs": [
    {" zebra": -2.5, " acorn": -0.5}]}}]}  # fmt: skip
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1,
                                  "prompt_tokens_details": {"cached_tokens": 2}}}  # fmt: skip


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_FIRST_PAUSE_S", 0.001)


def events(*values: object) -> bytes:
    texts = [v if isinstance(v, str) else json.dumps(v) for v in values]
    return b"".join(f"data: {text}\n\n".encode() for text in texts)


class Stub:
    """Answers /v1/models and /v1/completions with what it was given."""

    def __init__(self, *, models: bytes = MODELS, status: int = 200, stream: bytes = b"",
                 stream_status: int = 200, pause_s: float = 0.0) -> None:  # fmt: skip
        self.models, self.status = models, status
        self.stream, self.stream_status, self.pause_s = stream, stream_status, pause_s
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        listing = scope["path"] == "/v1/models"
        if not listing:
            self.bodies.append(json.loads(body))
            self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        await send({"type": "http.response.start", "headers": [],
                    "status": self.status if listing else self.stream_status})  # fmt: skip
        content = self.models if listing else self.stream
        if self.pause_s and not listing:
            await send({"type": "http.response.body", "body": content, "more_body": True})
            await asyncio.sleep(self.pause_s)
            content = b""
        await send({"type": "http.response.body", "body": content})


@asynccontextmanager
async def target(stub: Stub, **options: Any) -> AsyncIterator[Target]:
    options = {"preset": PRESETS["vllm"]} | options
    with running(stub, lifespan="off") as url:
        async with Target(
            url + "/v1/", {"a": "ka", "b": "kb"}, model=None, max_connections=4, **options
        ) as ready:
            yield ready


def call(**changes: Any) -> Call:
    values = {"tenant": "b", "prompt": "acorn", "max_tokens": 1, "conversation": "c"} | changes
    return Call(**values)


async def test_answer_is_read_in_full() -> None:
    stub = Stub(stream=events(TOKEN, TOKEN, USAGE, "[DONE]"))
    async with target(stub) as ready:
        reply = await ready.send(
            call(logprobs=20, extra_body={"cache_salt": "s"}, extra_headers={"x-forged": "1"})
        )
    assert ready.model == "m"
    assert reply.ending is Ending.DONE
    assert reply.text == " acorn acorn"
    assert reply.top_logprobs == (((" acorn", -0.5), (" zebra", -2.5)),) * 2
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (3, 1, 2)
    assert reply.ttft_ns is not None
    assert 0 < reply.ttft_ns <= reply.total_ns
    (body,), (headers,) = stub.bodies, stub.headers
    assert body["cache_salt"] == "s"
    assert body["logprobs"] == 20
    assert headers["authorization"] == "Bearer kb"
    assert headers["x-kvward-conversation"] == "c"
    assert headers["x-forged"] == "1"


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {}}, None),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {"cached_tokens": "7"}}, None),
        ({"prompt_tokens_details": {"cached_tokens": True}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
    ],
    ids=str,
)
async def test_absent_count_is_not_a_count_of_zero(
    usage: dict[str, Any], cached: int | None
) -> None:
    stream = events(TOKEN, {"choices": [], "usage": usage}, "[DONE]")
    async with target(Stub(stream=stream)) as ready:
        reply = await ready.send(call())
    assert reply.ending is Ending.DONE
    assert reply.cached_tokens == cached
    assert type(reply.cached_tokens) is type(cached)


@pytest.mark.parametrize(
    ("stub", "words"),
    [
        (Stub(stream_status=500, stream=b"Traceback"), "HTTP 500"),
        (Stub(stream_status=429), "HTTP 429"),
        (Stub(stream=events(TOKEN)), "ended early"),
        (Stub(stream=b""), "ended early"),
        (Stub(stream=events("{", "[DONE]")), "protocol"),
        (Stub(stream=events('{"choices": 7}', "[DONE]")), "protocol"),
        (Stub(stream=events({"error": {"message": "out of memory"}}, "[DONE]")), "out of memory"),
        (Stub(stream=b"<html>not a stream</html>"), "ended early"),
    ],
    ids=range(8),
)
async def test_trouble_is_a_failed_reply_and_never_a_clean_one(stub: Stub, words: str) -> None:
    async with target(stub) as ready:
        reply = await ready.send(call())
    assert reply.ending is Ending.FAILED
    assert reply.error is not None
    assert words in reply.error


@pytest.mark.parametrize(
    "logprobs",
    [None, {}, {"top_logprobs": None}, {"top_logprobs": [None]}, {"top_logprobs": "x"},
     {"top_logprobs": [{"a": "x"}]}, {"top_logprobs": [{"a": None}]}, 7],
    ids=str,
)  # fmt: skip
async def test_strange_logprobs_are_none_and_the_answer_is_still_read(logprobs: object) -> None:
    token = {"choices": [{"text": " acorn", "logprobs": logprobs}]}
    async with target(Stub(stream=events(token, "[DONE]"))) as ready:
        reply = await ready.send(call())
    assert reply.ending is Ending.DONE
    assert reply.text == " acorn"
    assert not any(position for position in reply.top_logprobs)


async def test_going_away_on_purpose_is_no_failure_and_waiting_in_vain_is_one() -> None:
    slow = Stub(stream=events(TOKEN), pause_s=5)
    async with target(slow) as ready:
        reply = await ready.send(call(cancel_after_s=0.3))
        assert reply.ending is Ending.CANCELLED
        assert reply.error is None
        assert reply.text == " acorn"
    async with target(slow, timeout_s=0.3) as ready:
        reply = await ready.send(call())
        assert reply.ending is Ending.FAILED
        assert reply.error == "timeout"


@pytest.mark.parametrize(
    ("stub", "words"),
    [
        (Stub(status=401), "refuses the key of tenant a"),
        (Stub(status=403), "refuses the key of tenant a"),
        (Stub(status=404), "HTTP 404"),
        (Stub(models=b"<html>"), "does not list"),
        (Stub(models=b'{"data":[]}'), "does not list"),
        (Stub(models=b'{"data":[{"name":"m"}]}'), "does not list"),
        (Stub(models=b"[]"), "does not list"),
    ],
    ids=range(7),
)
async def test_server_that_is_no_target_is_refused_before_the_plan(stub: Stub, words: str) -> None:
    with pytest.raises(TargetRefusedError, match=words) as caught:
        async with target(stub):
            pass
    assert caught.value.hint
    assert "ka" not in str(caught.value).split()


async def test_nothing_there_is_unreachable_and_a_closed_target_says_so() -> None:
    ready = Target(f"http://127.0.0.1:{free_port()}", {"a": "k"}, model=None, max_connections=1)
    with pytest.raises(TargetError, match="not open"):
        await ready.send(call(tenant="a"))
    with pytest.raises(TargetUnreachableError):
        async with ready:
            pass


async def test_model_that_is_not_listed_is_refused() -> None:
    with (
        running(Stub(), lifespan="off") as url,
        pytest.raises(TargetRefusedError, match="does not list a model x"),
    ):
        async with Target(url, {"a": "k"}, model="x", max_connections=1, preset=PRESETS["vllm"]):
            pass


async def test_target_that_answers_with_its_keys_puts_them_into_nothing() -> None:
    """Names of models and answers go into plans, histories and reports; keys do not."""
    keys = {"a": "key-of-a-7461", "b": "key-of-b-9120"}
    models = json.dumps({"data": [{"id": "key-of-b-9120"}, {"id": "m"}]}).encode()
    echo = TOKEN | {"id": "r-key-of-a-7461", "model": "key-of-a-7461"}
    other = echo | {"id": "s-key-of-a-7461"}
    stub = Stub(models=models, stream=events(echo, other, USAGE, "[DONE]"))
    with running(stub, lifespan="off") as url:
        async with Target(
            url, keys, model=None, max_connections=4, preset=PRESETS["vllm"]
        ) as ready:
            assert ready.model == "m"
            reply = await ready.send(call())
    assert reply.ending is Ending.DONE
    assert "key-of" not in repr(reply)
    assert len(set(reply.response_ids)) == 2  # different names stay different
    assert reply.model is not None
    assert reply.model.startswith("***")
    assert stub.headers[0]["authorization"] == "Bearer key-of-b-9120"
