"""Every preset against a server that speaks its API: what is asked, read, and goes wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from fakes import FAKES, Fake, Fault
from kvward.audit.exchange import Call, Ending, ForgedScope, Reply
from kvward.audit.plan import Route
from kvward.audit.target import PRESETS, Target

PROMPT = " ".join(f"w{n}" for n in range(1_300))
KEYS = {"a": "ka-secret", "b": "kb-secret"}
EVERY_ROUTE = [(name, route) for name in FAKES for route in PRESETS[name].routes if name in PRESETS]
EVERY_WAY = [(name, route, stream) for name, route in EVERY_ROUTE for stream in (True, False)]


def names(value: Any) -> str:
    return str(value)


@asynccontextmanager
async def opened(fake: Fake, preset: str | None = None, **options: Any) -> AsyncIterator[Target]:
    async with fake.serving() as url:
        chosen = None if preset is None else PRESETS[preset]
        async with Target(
            url, KEYS, model=None, max_connections=8, preset=chosen, **options
        ) as target:
            yield target


def call(**changes: Any) -> Call:
    values = {"tenant": "a", "prompt": PROMPT, "max_tokens": 3, "conversation": "c"} | changes
    return Call(**values)


@pytest.mark.parametrize(("name", "route", "stream"), EVERY_WAY, ids=names)
async def test_answer_is_read_in_full_on_every_route(name: str, route: Route, stream: bool) -> None:
    fake = FAKES[name]()
    async with opened(fake, name, stream=stream) as target:
        first = await target.send(call(route=route))
        again = await target.send(call(route=route))
        other = await target.send(call(route=route, tenant="b"))
    assert [r.error for r in (first, again, other)] == [None] * 3
    assert [r.ending for r in (first, again, other)] == [Ending.DONE] * 3
    assert first.text.split()[:3] == ["acorn", "zebra", "birch"]
    assert first.prompt_tokens == again.prompt_tokens == 1_300
    assert first.completion_tokens == again.completion_tokens >= 3
    assert first.ttft_ns is not None
    assert 0 < first.ttft_ns <= first.total_ns
    assert first.finish_reason in {"length", "max_tokens", "max_output_tokens"}
    assert first.model == "fake-1"
    assert first.output_digest == again.output_digest is not None
    assert (first.route, first.replica, first.num_retries) == (route, 0, 0)
    if name == "tgi":
        assert first.cached_tokens is again.cached_tokens is None
    else:
        assert (first.cached_tokens, again.cached_tokens, other.cached_tokens) == (0, 1_296, 0)
    asked = fake.asked[0]
    if route is not Route.MESSAGES or name == "anthropic":
        assert asked.key == "ka-secret"
    assert bool(asked.body.get("stream")) is stream
    assert "x-kvward-conversation" in asked.headers or name == "anthropic"


@pytest.mark.parametrize(
    ("name", "stream"), [("llamacpp", True), ("llamacpp", False), ("vllm", True)]
)
async def test_connection_that_the_server_ends_after_a_stream_is_not_used_again(
    name: str, stream: bool
) -> None:
    fake = FAKES[name]()
    async with opened(fake, name, stream=stream) as target:
        await target.send(call())
    asked = fake.asked[0].headers.get("connection", "keep-alive").lower()
    assert (asked == "close") is (name == "llamacpp" and stream)


@pytest.mark.parametrize(
    ("name", "route", "created"),
    [
        ("openai", Route.CHAT, 1_296),
        ("openai", Route.RESPONSES, 1_296),
        ("anthropic", Route.MESSAGES, 1_296),
        ("vllm", Route.MESSAGES, 1_296),
        ("vllm", Route.COMPLETIONS, None),
        ("sglang", Route.COMPLETIONS, None),
    ],
    ids=names,
)
async def test_what_was_written_to_the_cache_is_read_where_it_is_told(
    name: str, route: Route, created: int | None
) -> None:
    async with opened(FAKES[name](), name) as target:
        reply = await target.send(call(route=route))
    assert reply.created_tokens == created


@pytest.mark.parametrize(("name", "route"), EVERY_ROUTE, ids=names)
async def test_absent_count_is_no_count_of_zero(name: str, route: Route) -> None:
    fake = FAKES[name]().behaving(Fault.NO_USAGE)
    async with opened(fake, name) as target:
        reply = await target.send(call(route=route))
    assert reply.ending is Ending.DONE
    assert reply.cached_tokens is reply.prompt_tokens is reply.completion_tokens is None


@pytest.mark.parametrize(
    ("name", "route", "stream"),
    [way for way in EVERY_WAY if PRESETS[way[0]].routes[way[1]].max_logprobs],
    ids=names,
)
async def test_logprobs_are_read_in_every_shape(name: str, route: Route, stream: bool) -> None:
    async with opened(FAKES[name](), name, stream=stream) as target:
        reply = await target.send(call(route=route, logprobs=20))
    assert reply.error is None
    wanted = min(20, PRESETS[name].routes[route].max_logprobs)
    assert len(reply.top_logprobs) == reply.completion_tokens
    first = reply.top_logprobs[0]
    assert len(first) == wanted
    assert first[0] == (" acorn", -0.25)
    assert [value for _, value in first] == sorted((v for _, v in first), reverse=True)


@pytest.mark.parametrize(
    ("name", "route"),
    [(n, r) for n, r in EVERY_ROUTE if not PRESETS[n].routes[r].max_logprobs],
    ids=names,
)
async def test_route_without_logprobs_is_not_asked_for_them(name: str, route: Route) -> None:
    fake = FAKES[name]()
    async with opened(fake, name) as target:
        reply = await target.send(call(route=route, logprobs=20))
    assert reply.ending is Ending.DONE
    assert not {"logprobs", "top_logprobs"} & set(fake.asked[0].body)


@pytest.mark.parametrize(("name", "route"), EVERY_ROUTE, ids=names)
async def test_forged_scope_is_claimed_by_fields_that_the_server_takes(
    name: str, route: Route
) -> None:
    """The providers' fakes refuse what they do not know, as the providers do."""
    fake = FAKES[name]()
    forged = ForgedScope(salt="salt-1", session="session-1", tenant="b")
    async with opened(fake, name) as target:
        reply = await target.send(call(route=route, forged=forged))
        plain = await target.send(call(route=route))
    assert reply.error is plain.error is None
    sent = json.dumps([fake.asked[0].body, fake.asked[0].headers])
    assert ("salt-1" in sent or "session-1" in sent) or name in {"ollama", "tgi"}
    assert "salt-1" not in json.dumps(fake.asked[1].body)
    assert "session-1" not in json.dumps(fake.asked[1].body)


async def test_forged_salt_joins_two_tenants_of_an_engine_that_lets_callers_choose() -> None:
    fake = FAKES["vllm"](shared=True)
    forged = ForgedScope(salt="s", session="c", tenant="a")
    async with opened(fake, "vllm") as target:
        await target.send(call(forged=forged))
        joined = await target.send(call(tenant="b", forged=forged))
        alone = await target.send(call(tenant="b"))
    assert (joined.cached_tokens, alone.cached_tokens) == (1_296, 0)


async def test_llamacpp_is_read_by_what_was_reused_and_not_by_the_fill_of_its_slot() -> None:
    async with opened(FAKES["llamacpp"](), "llamacpp") as target:
        reply = await target.send(call())
    assert reply.cached_tokens == 0  # its `tokens_cached` says 1302


async def test_anthropic_is_asked_to_cache_and_counts_are_added_up() -> None:
    fake = FAKES["anthropic"]()
    async with opened(fake, "anthropic") as target:
        reply = await target.send(call(route=Route.MESSAGES))
    assert fake.asked[0].headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in fake.asked[0].headers
    (block,) = fake.asked[0].body["messages"][0]["content"]
    assert block["cache_control"] == {"type": "ephemeral"}
    assert reply.prompt_tokens == 1_300


FAILS = {
    Fault.ERROR_IN_BAND: "out of memory",
    Fault.CUT: "",
    Fault.DEEP: "protocol",
    Fault.NOT_JSON: "protocol",
    Fault.WRONG_TYPES: "",
    Fault.HUGE_PART: "bytes",
    Fault.REDIRECT: "HTTP 307",
    Fault.KEY_IN_ERROR: "HTTP 400",
    Fault.BUSY_FOR_LONG: "asked to wait 86400 s",
}


@pytest.mark.parametrize("fault", FAILS, ids=names)
@pytest.mark.parametrize(("name", "route"), EVERY_ROUTE, ids=names)
async def test_trouble_makes_a_failed_trial_and_nothing_worse(
    name: str, route: Route, fault: Fault
) -> None:
    fake = FAKES[name]().behaving(fault)
    async with opened(fake, name) as target:
        reply = await target.send(call(route=route))
        after = await target.send(call(route=route))
    assert reply.ending is Ending.FAILED
    assert reply.error
    assert FAILS[fault] in reply.error
    assert reply.num_retries == 0
    assert_recordable(reply)
    assert after.ending is Ending.DONE


@pytest.mark.parametrize("fault", [Fault.ERROR_IN_BAND, Fault.CUT, Fault.DEEP, Fault.NOT_JSON,
                                   Fault.WRONG_TYPES], ids=names)  # fmt: skip
@pytest.mark.parametrize(("name", "route"), EVERY_ROUTE, ids=names)
async def test_trouble_in_a_whole_answer_makes_a_failed_trial(
    name: str, route: Route, fault: Fault
) -> None:
    async with opened(FAKES[name]().behaving(fault), name, stream=False) as target:
        reply = await target.send(call(route=route))
    assert reply.ending is Ending.FAILED, reply
    assert_recordable(reply)


def assert_recordable(reply: Reply) -> None:
    """No key, no control character, and short enough to be kept."""
    text = repr(reply)
    assert "ka-secret" not in text
    assert reply.error is not None
    assert reply.error.isprintable()
    assert len(reply.error) <= 450


async def test_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvward.audit.target import wire

    monkeypatch.setattr(wire.iter_parts, "__kwdefaults__", {"max_bytes": 1 << 20})
    async with opened(FAKES["vllm"]().behaving(Fault.ENDLESS), "vllm") as target:
        reply = await target.send(call())
    assert reply.ending is Ending.FAILED
    assert reply.error == "the answer has more than 1048576 bytes"


@pytest.mark.parametrize("name", FAKES)
async def test_slow_answer_is_waited_for_and_its_time_is_taken(name: str) -> None:
    route = next(iter(PRESETS[name].routes))
    fake = FAKES[name]().behaving(Fault.SLOW, Fault.SLOW)
    async with opened(fake, name) as target:
        slow = await target.send(call(route=route))
        left = await target.send(call(route=route, cancel_after_s=0.1))
        gone = await target.send(call(route=route, cancel_after_s=0.0))
    assert slow.ending is Ending.DONE
    assert slow.total_ns > 350_000_000
    assert gone.ending is left.ending is Ending.CANCELLED
    assert gone.error is left.error is None


@pytest.mark.parametrize("name", FAKES)
async def test_server_is_recognised_and_the_reason_is_told(name: str) -> None:
    async with opened(FAKES[name]()) as target:
        assert target.preset.name == name
        assert target.choice.reason
        assert target.model == "fake-1"
        assert "secret" not in repr(target) + repr(target.choice)


@pytest.mark.parametrize("name", ["vllm", "openai", "sglang", "llamacpp"])
async def test_fakes_say_what_the_official_client_understands(name: str) -> None:
    """The fakes are checked against the types of OpenAI's own package, not against our reader."""
    import aiohttp

    fake = FAKES[name]()
    body = {"model": "fake-1", "max_tokens": 3, "temperature": 0}
    messages = [{"role": "user", "content": PROMPT}]
    async with fake.serving() as url, aiohttp.ClientSession() as session:

        async def ask(path: str, body: dict[str, Any]) -> str:
            async with session.post(
                url + path, json=body, headers={"authorization": "Bearer ka-secret"}
            ) as response:
                assert response.status == 200
                return await response.text()

        whole = await ask("/v1/completions", body | {"prompt": PROMPT, "logprobs": 2})
        chat = body | {"messages": messages, "logprobs": True, "top_logprobs": 2}
        said = await ask("/v1/chat/completions", chat)
        stream = await ask("/v1/chat/completions", chat | {"stream": True})
        if name != "llamacpp":  # whose completions have logprobs in the shape of chat
            Completion.model_validate_json(whole)
        ChatCompletion.model_validate_json(said)
        lines = [x[6:] for x in stream.splitlines() if x.startswith("data: {")]
        assert [ChatCompletionChunk.model_validate_json(line) for line in lines]
        if name in {"openai", "vllm"}:
            asked = {"model": "fake-1", "input": PROMPT, "max_output_tokens": 16}
            text = await ask("/v1/responses", asked)
            assert Response.model_validate_json(text).usage is not None


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_where_its_facts_come_from(name: str) -> None:
    preset = PRESETS[name]
    assert preset.name == name
    assert preset.facts
    assert all(fact.source and fact.seen for fact in preset.facts)
    assert preset.routes
    assert all(route.path.startswith("/") for route in preset.routes.values())
