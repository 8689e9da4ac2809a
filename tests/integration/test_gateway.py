"""The gateway between real clients and a real upstream on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from kvward.cli.process import free_port
from kvward.events import EventCounter
from kvward.gateway import create_gateway, generate_api_key, make_policy
from kvward.keeping import read_policy_file
from kvward.scope import ScopeIssuer, load_root_key, verify_token
from servers import running, write_policy


@dataclass
class Upstream:
    """Records what reaches it. `/v1/completions` streams ten chunks when asked to."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0
    finished: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        request = {"method": scope["method"], "path": scope["raw_path"].decode(),
                   "headers": headers, "body": body, "client": scope["client"][1],
                   "query": scope["query_string"].decode()}  # fmt: skip
        self.seen.append(request)
        value = json.loads(body) if body else {}
        if value.get("stream"):
            await self._stream(receive, send)
            return
        status = value.get("status", 200)
        answer = json.dumps({"echo": len(self.seen), "error": {"message": "m", "type": "t"}})
        await send({"type": "http.response.start", "status": status,
                    "headers": [(b"content-type", b"application/json"), (b"x-secret", b"1"),
                                (b"x-request-id", b"from-engine")]})  # fmt: skip
        if value.get("break"):
            await send({"type": "http.response.body", "body": answer.encode(), "more_body": True})
            raise RuntimeError("the upstream breaks off")
        await send({"type": "http.response.body", "body": answer.encode()})

    async def _stream(self, receive: Any, send: Any) -> None:
        leaving = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")]})  # fmt: skip
        for number in range(10):
            chunk = f"data: {number}\n\n".encode()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            done, _ = await asyncio.wait({leaving}, timeout=0.05)
            if done:
                self.left += 1
                return
        leaving.cancel()
        self.finished += 1
        await send({"type": "http.response.body", "body": b""})


@dataclass
class Stand:
    url: str
    keys: dict[str, str]
    upstream: Upstream
    issuer: ScopeIssuer
    events: EventCounter

    def call(
        self,
        body: Any = None,
        *,
        tenant: str | None = "a",
        method: str = "POST",
        path: str = "/v1/completions",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], Any]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        with contextlib.closing(connection):
            return self._call(connection, body, tenant, method, path, headers)

    def _call(
        self,
        connection: http.client.HTTPConnection,
        body: Any,
        tenant: str | None,
        method: str,
        path: str,
        headers: dict[str, str] | None,
    ) -> tuple[int, dict[str, str], Any]:
        sent = {"content-type": "application/json", **(headers or {})}
        if tenant is not None:
            sent.setdefault("authorization", f"Bearer {self.keys.get(tenant, tenant)}")
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        connection.request(method, path, body=content if method == "POST" else None, headers=sent)
        response = connection.getresponse()
        answer = response.read()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(answer)

    @property
    def salts(self) -> list[str]:
        return [json.loads(request["body"])["cache_salt"] for request in self.upstream.seen]


@contextlib.contextmanager
def stand(
    folder: Path,
    *,
    upstream_url: str | None = None,
    sections: dict[str, Any] | None = None,
    **limits: Any,
) -> Iterator[Stand]:
    upstream, events = Upstream(), EventCounter()
    with running(upstream, lifespan="off") as url:
        keys, path = write_policy(folder, upstream=upstream_url or url)
        values = read_policy_file(path) | ({"limits": limits} if limits else {}) | (sections or {})
        policy = make_policy(values, source="test")
        issuer = ScopeIssuer.from_root_key(
            load_root_key(folder / "root.key"), deployment=policy.deployment
        )
        app = create_gateway(policy, issuer=issuer, events=events, credential="engine-key")
        with running(app, lifespan="on") as gateway_url:
            yield Stand(gateway_url, keys, upstream, issuer, events)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Stand]:
    with stand(tmp_path) as ready:
        yield ready


def test_scope_is_the_tenants_whatever_the_caller_says(gate: Stand) -> None:
    forged = {"cache_salt": "victim", "extra_key": "victim", "prompt": "x"}
    names = {"x-kvward-conversation": "chat-1", "x-kvward-tenant": "b", "x-session-id": "v",
             "x-request-id": "v", "x-data-parallel-rank": "1", "x-tenant-id": "b",
             "cookie": "session=v", "x-forwarded-for": "1.2.3.4"}  # fmt: skip
    gate.call(forged, headers=names)
    gate.call(forged, tenant="b", headers=names)
    gate.call({"prompt": "y"}, headers={"x-kvward-conversation": "chat-1"})
    gate.call({"prompt": "y"}, headers={"x-kvward-conversation": "chat-2"})
    one, other_tenant, same, other_conversation = gate.salts
    assert one == same
    assert len({one, other_tenant, other_conversation}) == 3
    for salt in gate.salts:
        verify_token(salt, token_key=gate.issuer.token_key)
    for request in gate.upstream.seen:
        allowed = {"host", "accept", "accept-encoding", "accept-language", "user-agent",
                   "content-type", "content-length", "authorization"}  # fmt: skip
        assert set(request["headers"]) <= allowed
        assert request["headers"]["authorization"] == "Bearer engine-key"
        assert "victim" not in request["body"].decode()


def test_caller_gets_the_pseudonym_and_an_id_that_the_engine_did_not_choose(gate: Stand) -> None:
    _, one, _ = gate.call({"prompt": "x"}, headers={"x-kvward-conversation": "c"})
    _, two, _ = gate.call({"prompt": "x"}, headers={"x-kvward-conversation": "c"})
    _, other, _ = gate.call({"prompt": "x"}, tenant="b", headers={"x-kvward-conversation": "c"})
    assert one["x-kvward-conversation-id"] == two["x-kvward-conversation-id"]
    assert one["x-kvward-conversation-id"] != other["x-kvward-conversation-id"]
    assert len({h["x-request-id"] for h in (one, two, other)} - {"from-engine"}) == 3
    assert "x-secret" not in one


@pytest.mark.parametrize("tenant", [None, "wrong-key", ""])
def test_no_identity_no_forward(gate: Stand, tenant: str | None) -> None:
    for path in ("/v1/completions", "/v1/models", "/nothing"):
        status, _, answer = gate.call({"prompt": "x"}, tenant=tenant, path=path)
        assert status == 401
        assert answer["error"]["message"] == "The API key is missing or not valid."
    assert not gate.upstream.seen


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1/completions/", 404),
        ("POST", "//v1/completions", 404),
        ("POST", "/v1/../v1/completions", 404),
        ("POST", "/v1/%63ompletions", 404),
        ("POST", "/v1%2fcompletions", 404),
        ("POST", "/reset_prefix_cache", 404),
        ("GET", "/metrics", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
def test_unknown_route_never_reaches_the_engine(
    gate: Stand, method: str, path: str, status: int
) -> None:
    got, _, answer = gate.call({"prompt": "x"}, method=method, path=path)
    assert got == status
    assert answer["error"]["message"] == "This route is not available here with a tenant's key."
    assert not gate.upstream.seen


def test_known_routes_reach_the_engine_under_their_own_path(gate: Stand) -> None:
    gate.call(method="GET", path="/v1/models")
    gate.call({"messages": []}, path="/v1/chat/completions")
    seen = [(request["method"], request["path"]) for request in gate.upstream.seen]
    assert seen == [("GET", "/v1/models"), ("POST", "/v1/chat/completions")]


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b""])
def test_broken_body_is_answered_here(gate: Stand, body: bytes) -> None:
    status, _, answer = gate.call(body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert not gate.upstream.seen


def test_body_that_was_not_parsed_is_not_forwarded(gate: Stand) -> None:
    status, _, _ = gate.call(b'{"cache_salt":"v"}', headers={"content-type": "text/plain"})
    assert status == 400
    assert not gate.upstream.seen


def test_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    with stand(tmp_path, max_body_bytes=1000) as gate:
        status, _, _ = gate.call({"prompt": "x" * 2000})
        assert status == 413
        assert not gate.upstream.seen


@pytest.mark.parametrize("status", [400, 404, 429, 500])
def test_errors_of_the_engine_are_passed_on(gate: Stand, status: int) -> None:
    got, headers, answer = gate.call({"prompt": "x", "status": status})
    assert got == status
    assert answer["error"]["message"] == "m"
    assert "x-secret" not in headers


def test_dead_engine_is_a_bad_gateway_without_its_address(tmp_path: Path) -> None:
    port = free_port()
    with stand(tmp_path, upstream_url=f"http://127.0.0.1:{port}") as gate:
        status, _, answer = gate.call({"prompt": "x"})
        assert status == 502
        assert str(port) not in json.dumps(answer)


def test_broken_answer_is_seen_as_broken_and_its_connection_is_not_used_again(gate: Stand) -> None:
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        gate.call({"prompt": "x", "break": True})
    broken = gate.upstream.seen[-1]["client"]
    status, _, _ = gate.call({"prompt": "x"})
    assert status == 200
    assert gate.upstream.seen[-1]["client"] != broken
    assert gate.events.counts()["gateway.broken"] == 1


def test_health_needs_no_key_and_says_nothing(gate: Stand) -> None:
    status, _, answer = gate.call(tenant=None, method="GET", path="/healthz")
    assert (status, answer) == (200, {"status": "ok"})
    assert not gate.upstream.seen


def test_operators_route_passes_with_its_query_and_only_for_operators(tmp_path: Path) -> None:
    key, digest = generate_api_key()
    operators = [{"name": "o", "key_sha256": [digest]}]
    with stand(tmp_path, sections={"operators": operators}) as gate:
        path = "/reset_prefix_cache?reset_external=true&x=%20"
        assert gate.call(path=path)[0] == 404
        assert not gate.upstream.seen
        assert gate.call({"x": 1}, tenant=key, path=path)[0] == 200
        seen = gate.upstream.seen[-1]
        assert (seen["path"], seen["query"]) == ("/reset_prefix_cache", path.partition("?")[2])
        assert seen["headers"]["authorization"] == "Bearer engine-key"
        assert gate.call(path="/v1/completions?x=1")[0] == 200
        assert gate.upstream.seen[-1]["query"] == ""
        status, _, answer = gate.call(tenant=key, method="GET", path="/kvward/routes")
        assert (status, answer["seen"], answer["unknown"]) == (200, False, [])
        assert gate.call(tenant=key, path="/v1/completions")[0] == 404
        assert gate.call(tenant=key, path="/update_weights")[0] == 409
        assert len(gate.upstream.seen) == 2


async def test_websocket_is_refused(gate: Stand) -> None:
    async with aiohttp.ClientSession() as session:
        headers = {"authorization": f"Bearer {gate.keys['a']}"}
        for path in ("/v1/realtime", "/v1/completions"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(gate.url + path, headers=headers)
            assert caught.value.status == 403
    assert not gate.upstream.seen


async def test_chunks_pass_one_by_one(gate: Stand) -> None:
    async with aiohttp.ClientSession() as session:
        headers = {"authorization": f"Bearer {gate.keys['a']}"}
        async with session.post(
            gate.url + "/v1/completions", json={"stream": True}, headers=headers
        ) as response:
            await response.content.readuntil(b"\n\n")
            # The first chunk is here while the engine has not sent the last.
            assert gate.upstream.finished == 0
            rest = await response.content.read()
    assert rest.count(b"data:") == 9
    assert gate.upstream.finished == 1


async def test_client_that_vanishes_stops_the_engine_and_poisons_nothing(gate: Stand) -> None:
    parts = urlsplit(gate.url)
    body = json.dumps({"stream": True}).encode()
    for _ in range(3):
        raw = socket.create_connection((parts.hostname, parts.port))
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"authorization: Bearer {gate.keys['a']}\r\n".encode()
            + f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await asyncio.to_thread(raw.recv, 100)
        raw.close()
    deadline = asyncio.get_running_loop().time() + 5
    while gate.upstream.left < 3 and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)
    assert gate.upstream.left == 3
    assert gate.upstream.finished == 0
    abandoned = {request["client"] for request in gate.upstream.seen}
    status, _, answer = await asyncio.to_thread(gate.call, {"prompt": "x"})
    assert (status, answer["echo"]) == (200, 4)
    assert gate.upstream.seen[-1]["client"] not in abandoned


async def test_every_answer_belongs_to_its_request(gate: Stand) -> None:
    async with aiohttp.ClientSession() as session:

        async def ask(number: int) -> None:
            tenant = "ab"[number % 2]
            headers = {"authorization": f"Bearer {gate.keys[tenant]}",
                       "x-kvward-conversation": str(number)}  # fmt: skip
            async with session.post(
                gate.url + "/v1/completions", json={"prompt": number}, headers=headers
            ) as response:
                echo = (await response.json())["echo"]
            assert json.loads(gate.upstream.seen[echo - 1]["body"])["prompt"] == number

        await asyncio.gather(*(ask(number) for number in range(200)))
    assert len(set(gate.salts)) == 200
