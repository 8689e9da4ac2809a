"""The ward inside vLLM: what reaches the application is the gateway's, never the caller's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from inner_applications import JSON, Inner, Warded, make_warded, of_kind, shown
from kvward.gateway.table import ROUTES, Kind
from kvward.gateway.vllm import WardMiddleware
from kvward.scope import ScopeIssuer, load_root_key, verify_token
from kvward.scope.owner import OWNER_FIELD

FORGED = {
    "cache_salt": "victim", "request_id": "victim", "session_id": "victim", "priority": -1,
    "kv_transfer_params": {"cache_salt": "victim"}, "vllm_xargs": {"session_id": "victim"},
    "ec_transfer_params": {"x": "victim"}, "data_parallel_rank": 3, "extra_args": {"x": "victim"},
    "conversation": "victim",
}  # fmt: skip
FORGED_HEADERS = [
    JSON, (b"x-cache-salt", b"victim"), (b"x-session-id", b"victim"), (b"x-request-id", b"victim"),
    (b"x-data-parallel-rank", b"victim"), (b"x-priority", b"victim"), (b"cookie", b"victim"),
    (b"traceparent", b"victim"), (b"x-forwarded-for", b"victim"), (b"x-tenant-id", b"victim"),
    (b"content-length", b"7"), (b"transfer-encoding", b"chunked"), (b"origin", b"victim"),
]  # fmt: skip
SCOPED = [path for _, path in of_kind(Kind.SCOPED)]
OPERATOR = of_kind(Kind.OPERATOR)
RELOAD = of_kind(Kind.RELOAD)


@pytest.fixture
def warded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warded:
    return make_warded(tmp_path, monkeypatch)


@pytest.mark.parametrize("path", SCOPED)
async def test_scoped_route_gets_the_token_and_nothing_of_the_callers(
    warded: Warded, tmp_path: Path, path: str
) -> None:
    root = load_root_key(tmp_path / "root.key")
    issuer = ScopeIssuer.from_root_key(root, deployment="test")
    salts = []
    for who in ("a", "a", "b"):
        answer = await warded.call(
            path, {**FORGED, "model": "m"}, who=who, headers=FORGED_HEADERS, query=b"salt=victim"
        )
        assert answer.status == 200
        seen = warded.last
        verify_token(warded.last_body["cache_salt"], token_key=issuer.token_key)
        salts.append(warded.last_body["cache_salt"])
        assert set(warded.last_body) <= {"model", "cache_salt", "store"}
        headers = dict(seen["headers"])
        assert len(headers) == len(seen["headers"])
        assert set(headers) == {
            b"content-type", b"content-length", b"authorization", b"x-request-id",
        }  # fmt: skip
        assert headers[b"content-length"] == str(len(seen["content"])).encode()
        assert headers[b"authorization"] == b"Bearer engine-key"
        assert headers[b"x-request-id"] == dict(answer.headers)[b"x-request-id"]
        assert (seen["path"], seen["raw_path"]) == (path, path.encode())
        assert (seen["query_string"], seen["root_path"]) == (b"", "")
        assert "victim" not in repr(seen)
        assert warded.keys[who] not in repr(seen)
    assert salts[0] == salts[1] != salts[2]


async def test_answers_headers_are_the_gateways(warded: Warded) -> None:
    answer = await warded.call("/v1/completions", {"prompt": "x"})
    names = [name for name, _ in answer.headers]
    assert sorted(names) == [
        b"content-type", b"retry-after", b"x-kvward-conversation-id", b"x-request-id",
    ]  # fmt: skip
    assert answer.value == {"ok": True}


@pytest.mark.parametrize("path", SCOPED)
async def test_route_whose_level_is_not_named_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    warded = make_warded(tmp_path, monkeypatch, others=False)
    answer = await warded.call(path, {"model": "m"})
    named = path.startswith(("/v1/chat/completions", "/v1/completions"))
    assert answer.status == (200 if named else 404)
    assert bool(warded.inner.seen) == named


@pytest.mark.parametrize("path", SCOPED)
async def test_operator_has_no_scope_and_so_no_route_that_needs_one(
    warded: Warded, path: str
) -> None:
    assert (await warded.call(path, {"model": "m"}, who="operator")).status == 404
    assert not warded.inner.seen


@pytest.mark.parametrize(("method", "path"), OPERATOR)
async def test_operators_route_is_there_for_operators_only(
    warded: Warded, method: str, path: str
) -> None:
    unknown = await warded.call("/nothing", who="a", method=method)
    tenants = await warded.call(path, who="a", method=method)
    assert (
        (tenants.status, tenants.value) == (unknown.status, unknown.value) == (404, tenants.value)
    )
    assert (await warded.call(path, who="a", method="PATCH")).status == 404
    assert (await warded.call(path, who=None, method=method)).status == 401
    assert not warded.inner.seen
    answer = await warded.call(
        path, {"level": 1}, who="operator", method=method, query=b"level=2", headers=FORGED_HEADERS
    )
    assert answer.status == 200
    assert warded.last["query_string"] == b"level=2"
    assert warded.last["content"] == (b'{"level": 1}' if method == "POST" else b"")
    assert "victim" not in repr(warded.last)
    assert warded.ward._events.counts()["gateway.operator"] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("method", "path"), RELOAD)
async def test_model_is_not_changed_under_cached_state_unless_the_policy_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    warded = make_warded(tmp_path / "no", monkeypatch)
    assert (await warded.call(path, who="a", method=method)).status == 404
    answer = await warded.call(path, who="operator", method=method)
    assert answer.status == 409
    assert "allow_reload" in answer.value["error"]["message"]
    assert not warded.inner.seen
    warded = make_warded(tmp_path / "yes", monkeypatch, more="[engine]\nallow_reload = true\n")
    assert (await warded.call(path, who="operator", method=method)).status == 200


@pytest.mark.parametrize("who", ["a", "operator"])
@pytest.mark.parametrize(("method", "path"), of_kind(Kind.REFUSED))
async def test_refused_route_is_refused_to_everybody(
    warded: Warded, who: str, method: str, path: str
) -> None:
    if (path, who) != ("/metrics", "operator"):
        method = method if method in {"GET", "POST", "DELETE"} else "GET"
        assert (await warded.call(path, who=who, method=method)).status in {404, 405}
    for place in ("/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/static/x", "/metrics/"):
        assert (await warded.call(place, who=who, method="GET")).status == 404
    assert not warded.inner.seen


@pytest.mark.parametrize(
    "path",
    ["//v1/completions", "/v1/completions/", "/v1//completions", "/V1/completions",
     "/v1%2fcompletions", "/v1/%63ompletions", "/v1/./completions", "/x/../v1/completions",
     "/v1/completions;a", "/v1/completions\x00", "/v1/completions ", "http://x/v1/completions",
     "/v1/completions?", "/",
     "*", "", "/v1/compl\xe9tions", "/v1/completions#", "/kvward/routes/", "/kvward"],
)  # fmt: skip
async def test_second_spelling_of_a_path_is_an_unknown_path(warded: Warded, path: str) -> None:
    for who in ("a", "operator"):
        answer = await warded.call(path, {"prompt": "x"}, who=who)
        assert answer.status == 404
    assert not warded.inner.seen


async def test_decoded_path_of_the_scope_is_not_believed(warded: Warded) -> None:
    answer = await warded.call(
        "/v1/completions", {"prompt": "x"}, extra={"raw_path": b"/v1/%63ompletions"}
    )
    assert answer.status == 404
    answer = await warded.call(
        "/v1/completions", {"prompt": "x"}, extra={"path": "/sleep", "root_path": "/v1"}
    )
    assert answer.status == 200
    assert (warded.last["path"], warded.last["root_path"]) == ("/v1/completions", "")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "PATCH", "post"])
async def test_other_methods_do_not_pass(warded: Warded, method: str) -> None:
    assert (await warded.call("/v1/completions", method=method)).status == 405
    assert (await warded.call("/v1/completions", method=method, who=None)).status == 401
    assert not warded.inner.seen


@pytest.mark.parametrize("who", [None, "wrong", "a", "operator"])
async def test_probes_of_health_need_no_key(warded: Warded, who: str | None) -> None:
    for path in ("/health", "/ping"):
        assert (await warded.call(path, who=who, method="GET")).status == 200
        assert dict(warded.last["headers"])[b"authorization"] == b"Bearer engine-key"
    answer = await warded.call("/healthz", who=who, method="GET")
    assert answer.value == {"status": "ok"}
    assert len(warded.inner.seen) == 2


@pytest.mark.parametrize("who", ["a", "operator"])
async def test_harmless_routes_pass_for_whoever_has_a_key(warded: Warded, who: str) -> None:
    for path in ("/v1/models", "/version"):
        assert (await warded.call(path, who=who, method="GET", query=b"x=1")).status == 200
        assert warded.last["content"] == b""
    assert (await warded.call("/v1/models", who=None, method="GET")).status == 401
    answer = await warded.call("/tokenize", {**FORGED, "prompt": "x"}, who=who)
    assert answer.status == 200
    assert warded.last_body == {"prompt": "x"}


@pytest.mark.parametrize(
    "headers",
    [[], [(b"content-type", b"text/plain")], [JSON, JSON],
     [(b"content-type", b"application/x-www-form-urlencoded")],
     [(b"content-type", b"application/json; charset=utf-16")]],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/pooling"])
async def test_body_that_was_not_parsed_does_not_pass(
    warded: Warded, headers: list[tuple[bytes, bytes]], path: str
) -> None:
    answer = await warded.call(path, {"cache_salt": "victim"}, headers=headers)
    assert answer.status == 400
    assert not warded.inner.seen


async def test_repeated_and_escaped_names_are_one_field(warded: Warded) -> None:
    body = rb'{"prompt":"x","cache\u005fsalt":"victim","cache_salt":"v","\u0063ache_salt":"victim"}'
    await warded.call("/v1/completions", body)
    assert warded.last["content"].count(b"salt") == 1
    assert b"victim" not in warded.last["content"]


async def test_body_in_parts_is_read_to_its_end_and_not_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warded = make_warded(tmp_path, monkeypatch, more="[limits]\nmax_body_bytes = 100\n")

    def parts(*pieces: bytes) -> Any:
        waiting = [
            {"type": "http.request", "body": p, "more_body": n < len(pieces) - 1}
            for n, p in enumerate(pieces)
        ]

        async def receive() -> Any:
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        return receive

    answer = await warded.call("/v1/completions", receive=parts(b'{"pro', b'mpt":', b'"x"}'))
    assert answer.status == 200
    assert warded.last_body["prompt"] == "x"
    for path, who in (("/v1/completions", "a"), ("/reset_prefix_cache", "operator")):
        answer = await warded.call(path, who=who, receive=parts(b"x" * 60, b"x" * 60))
        assert answer.status == 413
    assert len(warded.inner.seen) == 1


async def test_websocket_is_closed_before_it_opens(warded: Warded) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    key = f"Bearer {warded.keys['operator']}".encode()
    for path in ("/v1/realtime", "/v1/completions", "/new"):
        scope = {"type": "websocket", "path": path, "headers": [(b"authorization", key)]}
        await warded.ward(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"] * 3
    assert not warded.inner.seen


async def test_client_that_leaves_is_seen_inside(warded: Warded) -> None:
    left = asyncio.Event()

    async def wait(receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    warded.inner.behaviour = wait
    messages = [{"type": "http.request", "body": b"{}", "more_body": False},
                {"type": "http.request", "body": b"victim", "more_body": False},
                {"type": "http.disconnect"}]  # fmt: skip

    async def receive() -> Any:
        await asyncio.sleep(0)
        return messages.pop(0)

    answer = await warded.call("/v1/completions", receive=receive)
    assert left.is_set()
    assert answer.status is None


async def test_chunks_pass_as_they_come(warded: Warded) -> None:
    order: list[str] = []

    async def stream(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [JSON]})
        for number in range(3):
            order.append(f"made {number}")
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    warded.inner.behaviour = stream
    answer = await warded.call(
        "/v1/chat/completions",
        {"messages": [], "stream": True},
        on_send=lambda message: order.append(f"sent {len(message.get('body', b''))}"),
    )
    assert order == ["sent 0", *(w for n in range(3) for w in (f"made {n}", "sent 1")), "sent 0"]
    assert answer.ended


async def test_error_inside_breaks_what_had_begun(warded: Warded) -> None:
    async def fail(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise RuntimeError("inside")

    warded.inner.behaviour = fail
    with pytest.raises(RuntimeError, match="inside"):
        await warded.call("/v1/completions", {"prompt": "x"})


async def live(
    ward: WardMiddleware, inner: Inner, between: Callable[[], Awaitable[object]] | None = None
) -> list[Any]:
    waiting = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        message = waiting.pop(0)
        if message["type"] == "lifespan.shutdown" and between is not None:
            await between()
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    await ward({"type": "lifespan", "app": inner}, receive, send)
    return sent


async def test_start_opens_the_ward_and_reaches_the_application(
    warded: Warded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sent = await live(warded.ward, warded.inner)
    (said,) = [text for text in caplog.messages if "The ward is in force" in text]
    assert "tenants: a, b" in said
    assert "operators: o" in said
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete", "lifespan.shutdown.complete",
    ]  # fmt: skip
    assert warded.inner.lifespans == ["lifespan.startup", "lifespan.shutdown"]


async def test_keyring_is_open_from_start_to_end_and_tells_whose_a_scope_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warded = make_warded(tmp_path, monkeypatch, keep=True)

    async def ask() -> None:
        for who in ("a", "b", "a"):
            assert (await warded.call("/v1/completions", {"prompt": "x"}, who=who)).status == 200

    for _ in range(2):  # and again, as a server may that starts its application anew
        sent = await live(warded.ward, warded.inner, ask)
        assert [message["type"] for message in sent][-1] == "lifespan.shutdown.complete"
    values = [json.loads(seen["content"]) for seen in warded.inner.seen]
    assert len({value["cache_salt"] for value in values}) == 2
    assert len({value["kv_transfer_params"][OWNER_FIELD] for value in values}) == 2


@pytest.mark.parametrize("wrong", ["no variable", "no file", "no root key", "no credential"])
async def test_ward_that_cannot_open_stops_the_start_and_every_request(
    warded: Warded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: str
) -> None:
    match wrong:
        case "no variable":
            monkeypatch.delenv("KVWARD_POLICY")
        case "no file":
            (tmp_path / "policy.toml").unlink()
        case "no root key":
            (tmp_path / "root.key").unlink()
        case _:
            monkeypatch.delenv("ENGINE_API_KEY")
    sent = await live(warded.ward, warded.inner)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert not warded.inner.lifespans
    for who, path, method in (("a", "/v1/completions", "POST"), (None, "/health", "GET")):
        assert (await warded.call(path, {"prompt": "x"}, who=who, method=method)).status == 503
    assert not warded.inner.seen


async def test_unknown_routes_are_told_and_refused(warded: Warded) -> None:
    nested = shown("MOUNT", "/inner")
    nested.routes = [shown("POST", "/v1/completions")]
    new = [shown("POST", "/v3/new"), shown("PUT", "/v1/completions"), shown("WEBSOCKET", "/live"),
           shown("MOUNT", "/apps"), nested, object()]  # fmt: skip
    any_method = shown("GET", "/any")
    any_method.methods = None
    warded.inner.routes = [*warded.inner.routes, *new, any_method]
    answer = await warded.call("/kvward/routes", who="operator", method="GET")
    assert answer.status == 200
    assert {(row["method"], row["path"]) for row in answer.value["unknown"]} == {
        ("POST", "/v3/new"), ("PUT", "/v1/completions"), ("WEBSOCKET", "/live"),
        ("MOUNT", "/apps"), ("POST", "/inner/v1/completions"), ("ANY", "/any"),
        ("UNREADABLE", "object"),
    }  # fmt: skip
    assert warded.ward._events.counts()["gateway.route-unknown"] == 7  # type: ignore[attr-defined]
    assert len(answer.value["routes"]) == len(ROUTES)
    for path in ("/v3/new", "/inner/v1/completions", "/any"):
        for who in ("a", "operator"):
            assert (await warded.call(path, {"prompt": "x"}, who=who)).status == 404
    assert (await warded.call("/kvward/routes", who="a", method="GET")).status == 404
    assert not warded.inner.seen


async def test_summary_says_what_the_policy_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warded = make_warded(tmp_path, monkeypatch, others=False)
    answer = await warded.call("/kvward/routes", who="operator", method="GET")
    rows = {(row["method"], row["path"]): row for row in answer.value["routes"]}
    assert rows["POST", "/v1/completions"] == {
        "method": "POST", "path": "/v1/completions", "kind": "scoped", "level": "tenant",
    }  # fmt: skip
    assert rows["POST", "/score"]["kind"] == "refused"
    assert answer.value["seen"] is True


async def test_ward_without_operators_has_no_operators_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warded = make_warded(tmp_path, monkeypatch)
    path = tmp_path / "policy.toml"
    path.write_text(path.read_text().partition("[[operators]]")[0])
    for method, place in (*OPERATOR, *RELOAD, ("GET", "/kvward/routes")):
        assert (await warded.call(place, who="operator", method=method)).status == 401
        assert (await warded.call(place, who="a", method=method)).status == 404
    assert not warded.inner.seen


async def test_hundred_requests_at_once_open_it_once_and_keep_apart(warded: Warded) -> None:
    async def ask(number: int) -> None:
        await warded.call("/v1/completions", {"prompt": number}, who="ab"[number % 2])

    await asyncio.gather(*(ask(number) for number in range(100)))
    salts: dict[int, set[str]] = {0: set(), 1: set()}
    for seen in warded.inner.seen:
        value = json.loads(seen["content"])
        salts[value["prompt"] % 2].add(value["cache_salt"])
    assert len(warded.inner.seen) == 100
    assert len(salts[0]) == len(salts[1]) == 1
    assert salts[0] != salts[1]
