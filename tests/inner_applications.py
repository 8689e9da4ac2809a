"""A ward around an application that records what reaches it. No server, no engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvward.gateway import generate_api_key
from kvward.gateway.policy import Levels
from kvward.gateway.table import ROUTES, Kind
from kvward.gateway.vllm import WardMiddleware
from servers import write_policy

JSON = (b"content-type", b"application/json")
OTHER_LEVELS = [name for name in Levels.__struct_fields__ if "completions" not in name]
_TYPES = {"WEBSOCKET": {"path": ""}, "MOUNT": {"path": "", "routes": []}}


def shown(method: str, path: str) -> SimpleNamespace:
    """Return a route as Starlette shows it."""
    if method in _TYPES:
        return SimpleNamespace(**(_TYPES[method] | {"path": path}))
    return SimpleNamespace(path=path, methods={method})


@dataclass
class Inner:
    """The application inside: answers, or does what `behaviour` does after it has read the body."""

    routes: list[Any] = field(default_factory=lambda: [shown(r.method, r.path) for r in ROUTES])
    seen: list[dict[str, Any]] = field(default_factory=list)
    lifespans: list[str] = field(default_factory=list)
    behaviour: Callable[[Any, Any], Awaitable[None]] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                message = await receive()
                self.lifespans.append(message["type"])
                await send({"type": message["type"] + ".complete"})
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        self.seen.append({**scope, "content": body})
        if self.behaviour is not None:
            await self.behaviour(receive, send)
            return
        headers = [JSON, (b"X-Secret", b"1"), (b"x-request-id", b"engine"), (b"Retry-After", b"3")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"ok":true}'})


@dataclass
class Answer:
    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    ended: bool = False

    @property
    def value(self) -> Any:
        return json.loads(b"".join(self.chunks))


@dataclass
class Warded:
    """The middleware around `inner`, and the keys of two tenants and an operator."""

    inner: Inner
    keys: dict[str, str]
    ward: WardMiddleware

    async def call(
        self,
        path: str,
        body: Any = None,
        *,
        who: str | None = "a",
        method: str = "POST",
        headers: list[tuple[bytes, bytes]] | None = None,
        query: bytes = b"",
        receive: Any = None,
        on_send: Callable[[Any], None] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Answer:
        sent = [JSON] if headers is None else list(headers)
        if who is not None:
            sent.append((b"authorization", f"Bearer {self.keys.get(who, who)}".encode()))
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        messages = [{"type": "http.request", "body": content, "more_body": False}]

        async def plain() -> Any:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        answer = Answer()

        async def send(message: Any) -> None:
            if on_send is not None:
                on_send(message)
            if message["type"] == "http.response.start":
                assert answer.status is None
                answer.status, answer.headers = message["status"], message["headers"]
            else:
                answer.chunks.append(message.get("body", b""))
                answer.ended = not message.get("more_body", False)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": path, "raw_path": path.encode("latin-1"),
            "query_string": query, "root_path": "", "headers": sent, "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80), "app": self.inner, **(extra or {}),
        }  # fmt: skip
        await self.ward(scope, receive or plain, send)
        return answer

    @property
    def last(self) -> dict[str, Any]:
        return self.inner.seen[-1]

    @property
    def last_body(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.last["content"])
        return value


def make_warded(
    folder: Path,
    patch: pytest.MonkeyPatch,
    *,
    level: str = "tenant",
    more: str = "",
    others: bool = True,
    keep: bool = False,
) -> Warded:
    """Write a policy that names all levels, or only the two that must be, and put a ward up."""
    keys, path = write_policy(folder, keep=keep)
    key, digest = generate_api_key()
    text = path.read_text().replace('"conversation"', f'"{level}"')
    named = "".join(f'{name} = "{level}"\n' for name in OTHER_LEVELS) if others else ""
    text = text.replace("[levels]\n", "[levels]\n" + named)
    text += f'\n[[operators]]\nname = "o"\nkey_sha256 = ["{digest}"]\n{more}'
    path.write_text(text.replace("# upstream_key_env", "upstream_key_env"))
    patch.setenv("KVWARD_POLICY", str(path))
    patch.setenv("ENGINE_API_KEY", "engine-key")
    inner = Inner()
    return Warded(inner, {**keys, "operator": key}, WardMiddleware(inner))


def of_kind(*kinds: Kind) -> list[tuple[str, str]]:
    """Return method and path of each row of the table of these kinds."""
    return [(route.method, route.path) for route in ROUTES if route.kind in kinds]
