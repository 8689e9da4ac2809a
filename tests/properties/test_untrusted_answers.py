"""Whatever a target sends, the auditor gets a reply that can be written down and read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvward.audit.canary.words import WORDS
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Redactor, Trial
from kvward.audit.plan import Route
from kvward.audit.target import PRESETS, ReplyReader
from kvward.audit.target.limits import parse_retry_after
from kvward.audit.target.preset import RoutePreset
from kvward.audit.target.wire import Framing, WireError, iter_parts

ROUTES = [
    (name, route, found)
    for name, preset in PRESETS.items()
    for route, found in preset.routes.items()
]
NAMES = st.sampled_from(
    [
        "id",
        "model",
        "choices",
        "text",
        "delta",
        "message",
        "content",
        "logprobs",
        "top_logprobs",
        "token",
        "logprob",
        "usage",
        "type",
        "response",
        "output",
        "error",
        "object",
        "done",
        "done_reason",
        "prompt_tokens",
        "cached_tokens",
        "input_tokens",
        "prompt_tokens_details",
        "timings",
        "cache_n",
        "prompt_n",
        "sglext",
        "cached_tokens_details",
        "device",
        "status",
        "finish_reason",
        "stop_reason",
        "incomplete_details",
        "prompt_eval_count",
        "eval_count",
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(
        ["response.completed", "response.output_text.delta", "message_start", "error",
         "content_block_delta", "message_delta", "message_stop", "failed", "message"]
    ),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=6)),
    max_leaves=30,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=8)


def recorded(reader: ReplyReader) -> Trial:
    """Write a reply as the auditor does, and read it back."""
    reply = reader.to_reply(Ending.FAILED if reader.error else Ending.DONE)
    redactor = Redactor(frozenset(WORDS))
    trial = Trial(
        number=0, arm=Arm.READ, tenant="a", conversation="c", prompt="p", prompt_words=1,
        own_words=(), ending=reply.ending, status=reply.status, start_ns=reply.start_ns,
        ttft_ns=reply.ttft_ns, total_ns=reply.total_ns, text=redactor.text(reply.text),
        top_logprobs=redactor.top_logprobs(reply), prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens, cached_tokens=reply.cached_tokens,
        response_ids=reply.response_ids, error=reply.error, created_tokens=reply.created_tokens,
        route=reply.route, finish_reason=reply.finish_reason, model=reply.model,
        output_digest=reply.output_digest,
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(trial), type=Trial) == trial
    return trial


def reader(name: str, route: Route, found: RoutePreset) -> ReplyReader:
    return ReplyReader(0, shape=found.shape, counters=PRESETS[name].counters, route=route)


def name_of(value: object) -> str:
    """Name a case by its server and route; what a route is made of has no name of its own."""
    return "" if isinstance(value, RoutePreset) else str(value)


@pytest.mark.parametrize(("name", "route", "found"), ROUTES, ids=name_of)
@settings(max_examples=30)
@given(parts=st.lists(OBJECTS, max_size=5), whole=OBJECTS)
def test_strange_documents_give_a_reply(
    name: str, route: Route, found: RoutePreset, parts: list[dict[str, Any]], whole: dict[str, Any]
) -> None:
    streamed = reader(name, route, found)
    for part in parts:
        streamed.take(msgspec.json.encode(part))
    recorded(streamed)
    at_once = reader(name, route, found)
    at_once.take_whole(msgspec.json.encode(whole))
    trial = recorded(at_once)
    for count in (trial.prompt_tokens, trial.cached_tokens, trial.created_tokens):
        assert count is None or count >= 0


@pytest.mark.parametrize(("name", "route", "found"), ROUTES, ids=name_of)
@settings(max_examples=20)
@given(parts=st.lists(st.binary(max_size=60), max_size=4))
def test_strange_bytes_give_a_reply(
    name: str, route: Route, found: RoutePreset, parts: list[bytes]
) -> None:
    streamed = reader(name, route, found)
    for part in parts:
        streamed.take(part)
    recorded(streamed)


@pytest.mark.parametrize(
    "bomb",
    [b"[" * 500_000, b'{"a":' * 500_000, b'{"choices":' + b"[" * 500_000, b"\xff\xfe",
     b"1" * 10_000,
     b'{"choices":[{"text":"\\ud800"}]}', b'{"usage":{"prompt_tokens":1e400}}'],
    ids=range(7),
)  # fmt: skip
@pytest.mark.parametrize(("name", "route", "found"), ROUTES, ids=name_of)
def test_bombs_give_a_failed_reply(
    name: str, route: Route, found: RoutePreset, bomb: bytes
) -> None:
    streamed = reader(name, route, found)
    streamed.take(bomb)
    assert streamed.error
    recorded(streamed)


@given(chunks=st.lists(st.binary(max_size=40), max_size=12), framing=st.sampled_from(Framing))
def test_parts_do_not_depend_on_where_the_network_cuts(
    chunks: list[bytes], framing: Framing
) -> None:
    async def parts(cut: list[bytes]) -> list[bytes]:
        async def iterate() -> AsyncIterator[bytes]:
            for chunk in cut:
                yield chunk

        return [part async for part in iter_parts(iterate(), framing)]

    assert asyncio.run(parts(chunks)) == asyncio.run(parts([b"".join(chunks)]))


async def test_part_and_body_have_bounds() -> None:
    async def long_line() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * (1 << 20)

    with pytest.raises(WireError):
        await anext(iter_parts(long_line(), Framing.LINES))

    async def many_lines() -> AsyncIterator[bytes]:
        while True:
            yield b"{}\n" * 100_000

    async def read() -> None:
        async for _ in iter_parts(many_lines(), Framing.LINES, max_bytes=1 << 20):
            pass

    with pytest.raises(WireError):
        await read()


@given(text=st.text(max_size=40))
def test_any_retry_after_gives_a_bounded_wait_or_none(text: str) -> None:
    from datetime import UTC, datetime

    wait = parse_retry_after(text, now=datetime(2026, 12, 2, tzinfo=UTC))
    assert wait is None or 0 <= wait <= 7 * 86_400
