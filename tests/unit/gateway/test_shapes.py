"""Each protocol's conversations, users, refused fields and nested places."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import UsageError
from kvward.gateway.body import parse_body
from kvward.gateway.owned import OWNED_FIELDS
from kvward.gateway.rewrite import rewrite, strip
from kvward.gateway.shapes import (
    BATCH,
    CHAT,
    DECISIONS,
    MESSAGES,
    POOLING,
    PROMPT,
    RESPONSES,
    SCORE,
    TEXT,
    TOKENS,
    Shape,
)
from kvward.gateway.table import ROUTES, Kind
from kvward.scope import RootKey, ScopeIssuer
from kvward.terms import SharingLevel

ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
SHAPES = [CHAT, BATCH, PROMPT, RESPONSES, MESSAGES, POOLING, SCORE, TOKENS, DECISIONS, TEXT]
USER = {"role": "user", "content": "hello"}


def send(
    shape: Shape,
    body: dict[str, Any],
    *,
    tenant: str = "a",
    level: SharingLevel = SharingLevel.CONVERSATION,
    conversation: str | None = None,
    owner_tags: bool = False,
) -> dict[str, Any]:
    rewritten = rewrite(
        parse_body(json.dumps(body).encode(), content_type=b"application/json"),
        shape=shape,
        tenant=tenant,
        level=level,
        owner_tags=owner_tags,
        conversation=conversation,
        boundary=None,
        issuer=ISSUER,
        now_unix_s=0,
        draw=secrets.token_bytes,
    )
    value: dict[str, Any] = json.loads(rewritten.body)
    return value


def salt(shape: Shape, body: dict[str, Any], **more: Any) -> str:
    value = send(shape, body, **more)["cache_salt"]
    assert isinstance(value, str)
    return value


def test_every_route_with_a_body_that_is_looked_at_has_a_shape() -> None:
    for route in ROUTES:
        looked_at = route.method == "POST" and route.kind in {Kind.SCOPED, Kind.HARMLESS}
        assert (route.shape is not None) == looked_at
        assert (route.level_name is not None) == (route.kind is Kind.SCOPED)
    places = [(route.method, route.path) for route in ROUTES]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("shape", [BATCH, PROMPT, POOLING, SCORE, TOKENS, DECISIONS])
def test_body_without_an_opening_is_a_scope_of_its_own_unless_it_is_named(shape: Shape) -> None:
    body = {"messages": [USER], "input": "x", "prompt": "x", "conversation": "c"}
    assert salt(shape, body) != salt(shape, body)
    assert salt(shape, body, conversation="c") == salt(shape, body, conversation="c")
    assert salt(shape, body, conversation="c") != salt(shape, body, conversation="c", tenant="b")


def test_responses_anchor_holds_over_turns_and_over_both_ways_to_write_text() -> None:
    first = {"model": "m", "instructions": "be brief", "input": "hello"}
    later = first | {"input": [{"type": "message", "role": "user",
                                "content": [{"type": "input_text", "text": "hello"}]},
                               {"type": "reasoning", "id": "r"},
                               {"role": "assistant", "content": "hi"}, USER]}  # fmt: skip
    assert salt(RESPONSES, first) == salt(RESPONSES, later)
    assert salt(RESPONSES, first) == salt(RESPONSES, first | {"input": [USER]})
    for other in ({"instructions": "be long"}, {"instructions": None}, {"model": "n"},
                  {"tools": []}, {"input": "hello "}, {"input": [{"role": "system",
                  "content": "s"}, USER]}):  # fmt: skip
        assert salt(RESPONSES, first) != salt(RESPONSES, first | other)
    assert salt(RESPONSES, first) != salt(RESPONSES, first, tenant="b")
    assert salt(RESPONSES, first) != salt(CHAT, {"model": "m", "messages": [USER]})


def test_what_else_leads_a_chats_prompt_belongs_to_its_opening() -> None:
    chat = {"model": "m", "messages": [USER]}
    bodies = [chat, chat | {"tools": []}, chat | {"documents": []}, chat | {"chat_template": "x"},
              chat | {"documents": [], "chat_template": "x"}]  # fmt: skip
    assert len({salt(CHAT, body) for body in bodies for _ in range(2)}) == len(bodies)


@pytest.mark.parametrize(
    "unanchored", [None, 3, [], ["x"], [{"role": "assistant"}], {"role": "user"}]
)
def test_responses_without_a_users_item_have_no_anchor(unanchored: object) -> None:
    body = {"model": "m", "input": unanchored}
    assert salt(RESPONSES, body) != salt(RESPONSES, body)


def test_responses_conversation_names_one_inside_its_tenant_and_does_not_pass() -> None:
    body = {"model": "m", "input": "x", "conversation": "c1"}
    named = salt(RESPONSES, body)
    assert "conversation" not in send(RESPONSES, body)
    assert named == salt(RESPONSES, body | {"conversation": {"id": "c1"}, "input": "y"})
    assert named == salt(RESPONSES, {"input": "z"}, conversation="c1")
    assert named != salt(RESPONSES, body, tenant="b")
    assert named != salt(RESPONSES, body, conversation="c2")
    for wrong in (3, [], {}, {"id": 3}, "", "\n", {"id": "x" * 257}, True):
        with pytest.raises(UsageError):
            send(RESPONSES, body | {"conversation": wrong})


def test_engine_is_told_not_to_store_responses() -> None:
    for body in ({}, {"store": None}, {"store": False}):
        assert send(RESPONSES, {"input": "x", **body})["store"] is False
    assert "store" not in send(CHAT, {"messages": [USER]})


def test_messages_anchor_ignores_where_a_client_puts_its_cache_markers() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "s"}]
    marked = {"role": "user", "content": [{"type": "text", "text": "hello", **mark}]}
    first = {"model": "m", "system": [system[0] | mark], "messages": [marked]}
    later = {"model": "m", "system": system, "messages": [USER, {"role": "assistant",
             "content": "hi"}, marked]}  # fmt: skip
    assert salt(MESSAGES, first) == salt(MESSAGES, later)
    for other in ({"system": "t"}, {"model": "n"}, {"tools": [{"name": "t"}]},
                  {"messages": [{"role": "user", "content": "hello!"}]}):  # fmt: skip
        assert salt(MESSAGES, first) != salt(MESSAGES, first | other)
    assert salt(MESSAGES, first) != salt(MESSAGES, first, tenant="b")


def test_messages_user_is_in_the_metadata() -> None:
    def of(body: dict[str, Any], shape: Shape = MESSAGES) -> str:
        return salt(shape, {"messages": [USER], **body}, level=SharingLevel.USER)

    one = {"metadata": {"user_id": "u"}}
    assert of(one) == of(one) == of({"user": "u"})
    assert of(one) != of({"metadata": {"user_id": "v"}})
    for nobody in ({"metadata": {"user_id": 3}}, {"metadata": "u"}, {"metadata": {}}):
        assert of(nobody) != of(nobody)
    assert of(one, CHAT) != of(one, CHAT)


@pytest.mark.parametrize(
    ("shape", "name"),
    [(RESPONSES, "prompt"), (RESPONSES, "previous_input_messages"), (POOLING, "data"),
     (TOKENS, "features"), *((shape, "previous_response_id") for shape in SHAPES),
     *((shape, "prompt_embeds") for shape in SHAPES)],
)  # fmt: skip
def test_field_that_reads_what_is_stored_is_refused(shape: Shape, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        send(shape, {name: {"id": "x"}})
    send(shape, {name: None})


@pytest.mark.parametrize("name", ["kv_transfer_params", "extra_args", "cache_salt", "vllm_xargs"])
def test_sampling_params_are_cleaned_like_the_body(name: str) -> None:
    inner = {"max_tokens": 3, name: {"kv_transfer_params": "victim"}}
    sent = send(TOKENS, {"token_ids": [1], "sampling_params": inner}, owner_tags=True,
                conversation="c")  # fmt: skip
    assert sent["sampling_params"] == {"max_tokens": 3}
    assert "victim" not in json.dumps(sent)
    escaped = rb'{"sampling_params":{"extra\u005fargs":{"a":1},"extra_args":{"b":2},"n":1}}'
    body = parse_body(escaped, content_type=b"application/json")
    assert json.loads(bytes(strip(body, shape=TOKENS)["sampling_params"])) == {"n": 1}
    for wrong in ([], "x", 3, None):
        with pytest.raises(UsageError):
            send(TOKENS, {"sampling_params": wrong})


@pytest.mark.parametrize("shape", SHAPES)
def test_owner_tag_goes_where_the_protocol_has_a_place_for_it(shape: Shape) -> None:
    sent = send(shape, {"model": "m"}, owner_tags=True, conversation="c")
    assert ("kv_transfer_params" in sent) == shape.takes_transfer


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
MEDIA = [
    (CHAT, lambda part: {"messages": [{"role": "user", "content": [part]}]}),
    (BATCH, lambda part: {"messages": [[{"role": "user", "content": [part]}]]}),
    (RESPONSES, lambda part: {"input": [{"role": "user", "content": [part]}]}),
    (POOLING, lambda part: {"messages": [{"role": "user", "content": [part]}]}),
    (POOLING, lambda part: {"input": [[{"role": "user", "content": [part]}]]}),
    (SCORE, lambda part: {"queries": "x", "documents": [{"content": [part]}]}),
    (SCORE, lambda part: {"query": {"content": [part]}}),
    (TOKENS, lambda part: {"token_ids": [1], "content_parts": [part]}),
    (TEXT, lambda part: {"messages": [{"role": "user", "content": [part]}]}),
]


@pytest.mark.parametrize(("shape", "around"), MEDIA, ids=range(len(MEDIA)))
def test_part_that_names_stored_media_is_refused(shape: Shape, around: Any) -> None:
    named = {"type": "image_url", "image_url": None, "uuid": "logo"}
    embedded = {"type": "prompt_embeds", "data": "x"}
    for part in (IMAGE | named, named, {"uuid": False}, embedded, {"prompt_embeds": "x"},
                 {"type": "item_reference", "id": "x"}, {"file": {"file_id": "x"}}):  # fmt: skip
        content = json.dumps(around(part))
        for text in (content, content.replace("uuid", r"u\u0075id"),
                     content.replace("_", r"\u005f")):  # fmt: skip
            body = parse_body(text.encode(), content_type=b"application/json")
            with pytest.raises(UsageError, match="not available"):
                strip(body, shape=shape)
    for part in (IMAGE, IMAGE | {"uuid": None}, {"type": "text", "text": "my uuid \\u00e9"}):
        send(shape, around(part))


def test_tools_may_speak_of_uuids() -> None:
    call = {"id": "1", "type": "function",
            "function": {"name": "f", "arguments": {"uuid": "x"}}}  # fmt: skip
    tools = [{"type": "function", "function": {"parameters": {"properties": {"uuid": {}}}}}]
    send(CHAT, {"messages": [{"role": "assistant", "tool_calls": [call]}, USER], "tools": tools})
    block = {"type": "tool_use", "id": "1", "name": "f", "input": {"rows": [{"uuid": "x"}]}}
    send(MESSAGES, {"messages": [{"role": "assistant", "content": [block]}, USER]})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "id", "user_id", "cache_salt"]),
        inner | st.sampled_from(["user", "message", "text"]), max_size=3),
    max_leaves=8,
)  # fmt: skip
BODIES = st.dictionaries(
    st.sampled_from([*OWNED_FIELDS, "model", "prompt", "messages", "input", "instructions",
                     "metadata", "sampling_params", "system", "user", "store"]),
    JSON_VALUES, max_size=6,
)  # fmt: skip


@given(
    one=BODIES,
    two=BODIES,
    shapes=st.tuples(st.sampled_from(SHAPES), st.sampled_from(SHAPES)),
    level=st.sampled_from([level for level in SharingLevel if level is not SharingLevel.PUBLIC]),
    name=st.none() | st.just("c"),
)
def test_no_two_tenants_share_a_salt_over_any_two_protocols(
    one: dict[str, Any],
    two: dict[str, Any],
    shapes: tuple[Shape, Shape],
    level: SharingLevel,
    name: str | None,
) -> None:
    salts = []
    for tenant, body, shape in zip("ab", (one, two), shapes, strict=True):
        try:
            value = send(shape, body, tenant=tenant, level=level, conversation=name)
        except UsageError:
            return
        assert not set(value) & (set(OWNED_FIELDS) - {"cache_salt"})
        inner = [value[place] for place in shape.inner if place in value]
        assert not any(set(each) & set(OWNED_FIELDS) for each in inner)
        salts.append(value["cache_salt"])
    assert salts[0] != salts[1]


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("shape", [CHAT, RESPONSES, MESSAGES, POOLING])
@pytest.mark.parametrize("depth", [300, 700, 100_000])
def test_depth_is_refused_or_passed_and_never_an_error_of_ours(shape: Shape, depth: int) -> None:
    inner = b'[{"role":"user","content":' + nested(depth) + b',"uuid":null}]'
    content = b'{"model":"m","messages":' + inner + b',"input":' + inner + b"}"
    for level in (SharingLevel.CONVERSATION, SharingLevel.TENANT):
        try:
            body = parse_body(content, content_type=b"application/json")
            rewrite(body, shape=shape, tenant="a", level=level, owner_tags=False,
                    conversation=None, boundary=None, issuer=ISSUER, now_unix_s=0,
                    draw=secrets.token_bytes)  # fmt: skip
        except UsageError:
            pass
