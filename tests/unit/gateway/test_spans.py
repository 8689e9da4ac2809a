"""Where leading messages end: what all renderings begin with, or nowhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import UsageError
from kvward.events import EventCounter
from kvward.gateway import spans as module
from kvward.gateway.body import Body, parse_body
from kvward.gateway.spans import Boundary, BoundaryFinder
from kvward.scope.spans import digest_tokens
from kvward.testing.clocks import ManualClock

SYSTEM = {"role": "system", "content": "You are helpful."}
USER = {"role": "user", "content": "hello"}
Messages = list[dict[str, Any]]


def chat(*messages: Any, **fields: Any) -> Body:
    content = json.dumps({"model": "m", "messages": list(messages), **fields}).encode()
    return parse_body(content, content_type=b"application/json")


def characters(messages: Messages) -> str:
    return "".join(f"<{m['role']}>{_text(m)}</>" for m in messages) + "<assistant>"


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class Engine:
    """Renders with a template, a token for each character."""

    def __init__(self, template: Callable[[Messages], str] = characters) -> None:
        self.template = template
        self.bodies: list[dict[str, Any]] = []
        self.answer: Callable[[list[int]], bytes | None] = lambda tokens: json.dumps(
            {"count": len(tokens), "tokens": tokens}
        ).encode()

    def tokens(self, messages: Messages) -> list[int]:
        return [ord(character) for character in self.template(messages)]

    async def __call__(self, body: bytes) -> bytes | None:
        value = json.loads(body)
        self.bodies.append(value)
        return self.answer(self.tokens(value["messages"]))


class World:
    def __init__(self) -> None:
        self.events = EventCounter()
        self.finder = BoundaryFinder(events=self.events)

    def find(
        self,
        body: Body,
        engine: Callable[[bytes], Awaitable[bytes | None]],
        *,
        tenant: str = "a",
    ) -> Boundary | None:
        return asyncio.run(self.finder.find(body, tenant=tenant, render=engine))


@pytest.fixture
def world() -> World:
    return World()


def test_boundary_is_where_the_users_text_may_begin_to_differ(world: World) -> None:
    engine = Engine()
    found = world.find(chat(SYSTEM, USER), engine)
    tokens = engine.tokens([SYSTEM, {"role": "user", "content": ""}])
    end = len("<system>You are helpful.</><user>")
    assert found == Boundary(end_tokens=end, digest=digest_tokens(tokens[:end]))
    assert len(engine.bodies) == 4


def test_engine_is_shown_no_word_of_any_user(world: World) -> None:
    engine = Engine()
    secret = {"role": "user", "content": "SECRET"}
    world.find(
        chat(SYSTEM, secret, {"role": "assistant", "content": "SECRET"}, user="SECRET"), engine
    )
    assert "SECRET" not in json.dumps(engine.bodies)
    texts = {body["messages"][-1]["content"] for body in engine.bodies}
    assert len(texts) == 4
    assert len({text[0] for text in texts}) == 4


@given(st.text(), st.text())
def test_nothing_of_a_real_users_text_lies_in_the_span(system: str, user: str) -> None:
    engine = Engine()
    leading = {"role": "system", "content": system}
    found = World().find(chat(leading, {"role": "user", "content": user}), engine)
    assert found is not None
    real = engine.tokens([leading, {"role": "user", "content": user}])
    assert digest_tokens(real[: found.end_tokens]) == found.digest
    assert found.end_tokens <= len(f"<system>{system}</><user>")


# Templates.


def test_template_that_trims_the_users_text(world: World) -> None:
    def template(messages: Messages) -> str:
        return "".join(f"<{m['role']}>{_text(m).strip()}</>" for m in messages)

    found = world.find(chat(SYSTEM, USER), Engine(template))
    assert found is not None
    assert found.end_tokens == len("<system>You are helpful.</><user>")


def test_template_that_puts_the_users_text_first(world: World) -> None:
    def template(messages: Messages) -> str:
        return "^" + "".join(f"{_text(m)};" for m in reversed(messages))

    found = world.find(chat(SYSTEM, USER), Engine(template))
    assert found == Boundary(end_tokens=1, digest=digest_tokens([ord("^")]))
    nothing = world.find(chat({**SYSTEM, "name": "n"}, USER), Engine(lambda m: template(m)[1:]))
    assert nothing is None


def test_template_whose_last_token_merges_with_the_text(world: World) -> None:
    class Merging(Engine):
        def tokens(self, messages: Messages) -> list[int]:
            text = self.template(messages)
            merged = []
            for place, character in enumerate(text):
                if text[place : place + 1] == ">" and text[place + 1 : place + 2] != "<":
                    merged.append(1000 + ord(text[place + 1 : place + 2] or " "))
                else:
                    merged.append(ord(character))
            return merged

    engine = Merging()
    found = world.find(chat({"role": "system", "content": "<x>"}, USER), engine)
    assert found is not None
    assert found.end_tokens == len("<system><x></><user")


def test_template_that_leaves_out_the_user_ends_with_the_rendering(world: World) -> None:
    engine = Engine(lambda messages: _text(messages[0]))
    found = world.find(chat(SYSTEM, USER), engine)
    assert found is not None
    assert found.end_tokens == len("You are helpful.")


def test_template_that_renders_differently_each_time_ends_where_it_does(world: World) -> None:
    numbers = iter(range(100))
    engine = Engine(lambda messages: f"^{next(numbers)}" + characters(messages))
    found = world.find(chat(SYSTEM, USER), engine)
    assert found == Boundary(end_tokens=1, digest=digest_tokens([ord("^")]))


# Engines that fail.


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"{}", b"[1, 2]", b'{"tokens": null}', b'{"tokens": ["1"]}', b'{"tokens": [1.5]}',
     b'{"tokens": [1]', b"\xff"],
)  # fmt: skip
def test_engine_that_does_not_render_gives_no_boundary_and_is_asked_again(
    world: World, answer: bytes | None
) -> None:
    engine = Engine()
    engine.answer = lambda tokens: answer
    assert world.find(chat(SYSTEM, USER), engine) is None
    assert world.events.counts() == {"gateway.boundary-unknown": 1}
    assert world.find(chat(SYSTEM, USER), Engine()) is not None


def test_one_rendering_that_fails_is_enough_to_know_nothing(world: World) -> None:
    engine = Engine()
    good = engine.answer
    engine.answer = lambda tokens: None if len(engine.bodies) == 3 else good(tokens)
    assert world.find(chat(SYSTEM, USER), engine) is None


def test_empty_rendering_ends_nowhere(world: World) -> None:
    engine = Engine(lambda messages: "")
    assert world.find(chat(SYSTEM, USER), engine) is None


def test_engine_that_is_slow_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENDER_S", 0.01)
    ended = []

    async def slow(body: bytes) -> bytes | None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        return None

    assert world.find(chat(SYSTEM, USER), slow) is None
    assert ended == [True] * 4
    assert world.events.counts() == {"gateway.boundary-unknown": 1}


@pytest.mark.parametrize("token", [-1, 2**32])
def test_token_ids_out_of_range_give_no_boundary(world: World, token: int) -> None:
    engine = Engine()
    engine.answer = lambda tokens: json.dumps({"tokens": [token]}).encode()
    assert world.find(chat(SYSTEM, USER), engine) is None


# What is remembered.


def test_boundary_is_remembered_for_each_tenant_apart(world: World) -> None:
    engine = Engine()
    one = world.find(chat(SYSTEM, USER), engine)
    assert world.find(chat(SYSTEM, {"role": "user", "content": "else"}), engine) == one
    assert len(engine.bodies) == 4
    assert world.find(chat(SYSTEM, USER), engine, tenant="b") == one
    assert len(engine.bodies) == 8


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "n"},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"x": 1}},
        {"chat_template_kwargs": {"x": 1.0}},
        {"chat_template_kwargs": {"x": True}},
        {"add_special_tokens": False},
    ],
)
def test_whatever_is_rendered_with_is_remembered_apart(
    world: World, fields: dict[str, Any]
) -> None:
    engine = Engine()
    for body in (chat(SYSTEM, USER), chat(SYSTEM, USER, **fields), chat(SYSTEM, USER, **fields)):
        world.find(body, engine)
    assert len(engine.bodies) == 8
    for name, value in fields.items():
        assert engine.bodies[-1][name] == value


def test_leading_messages_with_no_boundary_are_remembered_too(world: World) -> None:
    engine = Engine(lambda messages: _text(messages[-1]))
    for _ in range(2):
        assert world.find(chat(SYSTEM, USER), engine) is None
    assert len(engine.bodies) == 4


def test_one_tenants_system_messages_drive_out_nobody_elses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_KNOWN", 8)
    world = World()
    engine = Engine()
    world.find(chat(SYSTEM, USER), engine, tenant="b")
    for number in range(16):
        world.find(chat({"role": "system", "content": str(number)}, USER), engine)
    before = len(engine.bodies)
    world.find(chat(SYSTEM, USER), engine, tenant="b")
    assert len(engine.bodies) == before


def test_boundary_is_found_again_when_the_template_has_changed() -> None:
    clock = ManualClock()
    finder = BoundaryFinder(events=EventCounter(), monotonic_s=clock)
    engine = Engine(lambda messages: "Monday" + characters(messages))

    def find() -> Boundary | None:
        return asyncio.run(finder.find(chat(SYSTEM, USER), tenant="a", render=engine))

    one = find()
    engine.template = lambda messages: "Tuesday" + characters(messages)
    assert find() == one
    clock.advance(301)
    assert find() not in {one, None}


# Which messages lead.


@pytest.mark.parametrize(
    ("messages", "num_leading"),
    [
        ([SYSTEM, USER], 1),
        ([SYSTEM, {"role": "developer", "content": "x"}, USER], 2),
        ([SYSTEM, USER, SYSTEM], 1),
        ([SYSTEM], 1),
        ([SYSTEM, {"role": "tool", "content": "x"}, SYSTEM], 1),
        ([SYSTEM, {"role": "assistant", "content": "x"}], 1),
        ([SYSTEM, {"role": "SYSTEM", "content": "x"}], 1),
        ([SYSTEM, {"role": None, "content": "x"}], 1),
        ([SYSTEM, {"content": "x"}], 1),
        ([SYSTEM, "x"], 1),
        ([{"role": "system", "content": [{"type": "text", "text": "x"}]}, USER], 1),
        ([USER, SYSTEM], 0),
        ([], 0),
        ([{"role": "tool", "content": "x"}, SYSTEM], 0),
        ([{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}, USER], 0),
        ([SYSTEM, {"role": "system", "content": [{"type": "input_audio"}]}, USER], 0),
        ([{"role": "system", "content": None}, USER], 0),
        ([{"role": "system", "content": ["x"]}, USER], 0),
        ([{"role": "system"}, USER], 0),
    ],
)
def test_only_system_and_developer_messages_of_text_lead(
    world: World, messages: list[Any], num_leading: int
) -> None:
    engine = Engine()
    found = world.find(chat(*messages), engine)
    assert (found is not None) is bool(num_leading)
    for body in engine.bodies:
        assert body["messages"][:-1] == messages[:num_leading]
        assert body["messages"][-1]["role"] == "user"
    assert len(engine.bodies) == (4 if num_leading else 0)


@pytest.mark.parametrize("messages", [None, {}, "text", 7, {"role": "system"}])
def test_messages_of_another_form_lead_nowhere(world: World, messages: object) -> None:
    engine = Engine()
    body = parse_body(json.dumps({"messages": messages}).encode(), content_type=b"application/json")
    assert world.find(body, engine) is None
    assert world.find({}, engine) is None
    assert not engine.bodies


def test_field_that_is_not_json_is_refused(world: World) -> None:
    body = parse_body(b'{"messages": [}]}'.replace(b"[}", b"[{}"), content_type=b"application/json")
    assert world.find(body, Engine()) is None
    bad = chat(SYSTEM, USER) | {"tools": b"[1,"}
    with pytest.raises(UsageError):
        world.find(bad, Engine())  # type: ignore[arg-type]


@pytest.mark.parametrize("role", [[], {}, ["system"], {"a": 1}])
def test_role_of_another_type_leads_nowhere(world: World, role: object) -> None:
    assert world.find(chat({"role": role, "content": "x"}, USER), Engine()) is None


def test_large_integer_among_the_rendered_fields_is_rendered_as_it_is(world: World) -> None:
    engine, large = Engine(), 123456789012345678901234567890
    assert world.find(chat(SYSTEM, USER, chat_template_kwargs={"n": large}), engine) is not None
    assert engine.bodies[0]["chat_template_kwargs"] == {"n": large}
