"""What all fakes share: a server on loopback, a cache of prefixes, faults."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from aiohttp import web

BLOCK_WORDS = 16
MODEL = "fake-1"
WORDS = ("acorn", "zebra", "birch", "otter")


class Fault(StrEnum):
    """What a fake is told to do instead of behaving."""

    NONE = "none"
    ERROR_IN_BAND = "error-in-band"
    NO_USAGE = "no-usage"
    SLOW = "slow"
    BUSY = "busy"
    BUSY_FOR_LONG = "busy-for-long"
    CUT = "cut"
    DEEP = "deep"
    WRONG_TYPES = "wrong-types"
    NOT_JSON = "not-json"
    HUGE_PART = "huge-part"
    ENDLESS = "endless"
    REDIRECT = "redirect"
    KEY_IN_ERROR = "key-in-error"


@dataclass
class Asked:
    """One request as it came."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    key: str


@dataclass
class Generated:
    """What the engine makes of one prompt.

    `cached` words of the prompt were reused, `created` were written to the cache.
    """

    prompt: int
    cached: int
    created: int
    words: list[str] = field(default_factory=list)
    logprobs: int = 0

    def alternatives(self, place: int) -> list[tuple[str, float]]:
        """The most likely tokens of a place: the said one first."""
        said = " " + self.words[place]
        others = [f" other-{n}" for n in range(1, self.logprobs)]
        return [(said, -0.25), *((word, -3.0 - n) for n, word in enumerate(others))]


class Fake:
    """A server that speaks one API. Subclasses add routes and write answers.

    Args:
        shared: Whether prefixes are found across callers, as engines do that nobody told better.
        faults: What to do for the next requests, in order; afterwards it behaves.
        reports: Whether reuse is reported at all.
    """

    keys = ("ka-secret", "kb-secret")
    min_cached_words = 1
    lives_s = 1e9

    def __init__(
        self, *, shared: bool = False, faults: Iterable[Fault] = (), reports: bool = True
    ) -> None:
        self.shared, self.reports = shared, reports
        self.faults = deque(faults)
        self.asked: list[Asked] = []
        self.gone: list[str] = []
        self._prefixes: dict[tuple[str, ...], float] = {}

    # What subclasses give.

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    def key_of(self, request: web.Request) -> str:
        return request.headers.get("authorization", "").removeprefix("Bearer ")

    def scope_of(self, asked: Asked) -> str:
        """What the engine mixes into its keys besides the prompt."""
        return str(asked.body.get("cache_salt", ""))

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"error": {"message": message, "type": "server_error", "param": None, "code": None}}

    def frame(self, value: Any) -> bytes:
        kind = value.get("type") if isinstance(value, dict) else None
        name = f"event: {kind}\n" if isinstance(kind, str) else ""
        return f"{name}data: {json.dumps(value)}\n\n".encode()

    # What they use.

    def generate(self, asked: Asked, prompt: str, *, tokens: int, logprobs: int = 0) -> Generated:
        words = prompt.split()
        scope = self.scope_of(asked) + ("" if self.shared else "/" + asked.key)
        blocks = [(scope, *words[:end]) for end in range(BLOCK_WORDS, len(words), BLOCK_WORDS)]
        cached = 0
        for block in blocks:
            if self._prefixes.get(block, -1e9) < time.monotonic() - self.lives_s:
                break
            cached += BLOCK_WORDS
        if len(words) < self.min_cached_words:
            return Generated(len(words), 0, 0, self._say(tokens), logprobs)
        self._prefixes |= dict.fromkeys(blocks, time.monotonic())
        created = len(blocks) * BLOCK_WORDS - cached
        return Generated(len(words), cached, created, self._say(tokens), logprobs)

    def _say(self, tokens: int) -> list[str]:
        return [WORDS[n % len(WORDS)] for n in range(min(tokens, 8))]

    async def take(self, request: web.Request) -> Asked:
        asked = Asked(
            path=request.path,
            body=await request.json(),
            headers={name.lower(): value for name, value in request.headers.items()},
            key=self.key_of(request),
        )
        self.asked.append(asked)
        return asked

    async def answer(
        self, request: web.Request, *, stream: bool, parts: Iterator[Any], whole: Any
    ) -> web.StreamResponse:
        """Send an answer, or what the next fault says. `None` among the parts is no usage."""
        fault = self.faults.popleft() if self.faults else Fault.NONE
        match fault:
            case Fault.BUSY:
                return self.refuse(429, "slow down", headers={"retry-after": "0.05"})
            case Fault.BUSY_FOR_LONG:
                return self.refuse(503, "come back tomorrow", headers={"retry-after": "86400"})
            case Fault.REDIRECT:
                return web.Response(status=307, headers={"location": "http://127.0.0.1:9/x"})
            case Fault.KEY_IN_ERROR:
                return self.refuse(400, f"bad\x1b[31m request by {self.key_of(request)}\n")
        if not stream:
            return await self._answer_whole(request, fault, whole)
        return await self._answer_parts(request, fault, list(parts))

    def refuse(
        self, status: int, message: str, headers: dict[str, str] | None = None
    ) -> web.Response:
        return web.json_response(self.error(message, status), status=status, headers=headers)

    def without_usage(self, value: Any) -> Any:
        """A part or body as a server sends it that reports no usage."""
        if not isinstance(value, dict):
            return value
        return {name: self.without_usage(inner) for name, inner in value.items() if name != "usage"}

    async def _answer_whole(
        self, request: web.Request, fault: Fault, whole: Any
    ) -> web.StreamResponse:
        body = json.dumps(whole).encode()
        match fault:
            case Fault.NO_USAGE:
                body = json.dumps(self.without_usage(whole)).encode()
            case Fault.ERROR_IN_BAND:
                body = json.dumps(self.error("out of memory", 500)).encode()
            case Fault.SLOW:
                await asyncio.sleep(0.4)
            case Fault.DEEP:
                body = b'{"a":' * 200_000
            case Fault.NOT_JSON:
                body = b"<html>no</html>"
            case Fault.WRONG_TYPES:
                body = json.dumps(_twisted(whole)).encode()
            case Fault.CUT:
                response = web.StreamResponse(headers={"content-length": str(len(body))})
                await response.prepare(request)
                await response.write(body[: len(body) // 2])
                self._cut(request)
                return response
        return web.Response(body=body, content_type="application/json")

    async def _answer_parts(
        self, request: web.Request, fault: Fault, parts: list[Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for number, part in enumerate(parts):
                if number == 1:
                    match fault:
                        case Fault.CUT:
                            self._cut(request)
                            return response
                        case Fault.ERROR_IN_BAND:
                            await response.write(self.frame(self.error("out of memory", 500)))
                            return response
                        case Fault.SLOW:
                            await asyncio.sleep(0.4)
                        case Fault.DEEP:
                            await response.write(b"data: " + b'{"a":' * 200_000 + b"\n\n")
                            return response
                        case Fault.NOT_JSON:
                            await response.write(b"data: {oh\n\n{oh\n")
                        case Fault.HUGE_PART:
                            await response.write(b'data: {"a":"' + b"x" * (5 << 20))
                        case Fault.ENDLESS:
                            while True:
                                await response.write(self.frame(parts[0]) * 500)
                if fault is Fault.WRONG_TYPES:
                    part = _twisted(part)
                if fault is Fault.NO_USAGE:
                    part = self.without_usage(part)
                await response.write(part if isinstance(part, bytes) else self.frame(part))
            await response.write_eof()
        except (ConnectionResetError, asyncio.CancelledError):
            self.gone.append(request.path)
            raise
        return response

    def _cut(self, request: web.Request) -> None:
        assert request.transport is not None
        request.transport.abort()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free port of loopback; gives the base URL."""
        application = web.Application(client_max_size=8 << 20)
        application.add_routes(self.routes())
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()

    def behaving(self, *faults: Fault) -> Self:
        """Say what to do for the next requests."""
        self.faults = deque(faults)
        return self


def _twisted(value: Any) -> Any:
    """The same document with every leaf of another type than it should be."""
    if isinstance(value, dict):
        return {name: _twisted(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return {"0": [_twisted(inner) for inner in value]}
    if isinstance(value, bytes):
        return value
    return [value] if isinstance(value, str) else str(value)
