"""The audited endpoint: an OpenAI-compatible server, seen from outside as its callers see it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from kvward.audit.exchange import Call, Ending, Reply
from kvward.errors import TargetError, TargetRefusedError, TargetUnreachableError

_ERROR_TEXT_CHARACTERS = 200


class _Chunk(msgspec.Struct):
    id: str = ""
    choices: list[dict[str, Any]] = []
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Target:
    """Sends calls to one base URL under the keys of several tenants.

    Args:
        url: Base URL, with or without "/v1".
        keys: API key of each tenant. [secret]
        model: Model name to ask for; None takes the first one that the target lists.
        max_connections: Connections kept open at once.
    Raises:
        TargetUnreachableError, TargetRefusedError, TargetError: from `open`.
    """

    def __init__(
        self,
        url: str,
        keys: Mapping[str, str],
        *,
        model: str | None,
        max_connections: int,
        timeout_s: float = 120.0,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._keys = dict(keys)
        self._model = model
        self._max_connections = max_connections
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=10.0)
        self._session: aiohttp.ClientSession | None = None

    @property
    def model(self) -> str:
        """Return the model asked for; known after the target was entered."""
        return self._model or ""

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=self._max_connections)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, auto_decompress=True
        )
        try:
            for tenant in self._keys:
                await self._check_access(tenant)
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def answers(self) -> bool:
        """Tell whether the target answers every tenant now."""
        try:
            for tenant in self._keys:
                await self._check_access(tenant)
        except TargetError:
            return False
        return True

    async def _check_access(self, tenant: str) -> None:
        try:
            async with self._open_session.get(
                f"{self.url}/v1/models", headers=self._authorization(tenant)
            ) as response:
                status, body = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise TargetUnreachableError(
                f"Nothing that speaks HTTP answers at {self.url} ({type(exc).__name__}).",
                hint="Check the address, and that the server has finished starting.",
            ) from exc
        except ValueError as exc:
            raise TargetUnreachableError(
                f"{self.url} is not a URL that can be asked.",
                hint="Write it as http://HOST:PORT",
            ) from exc
        if status in {401, 403}:
            raise TargetRefusedError(
                f"The target refuses the key of tenant {tenant} (HTTP {status}).",
                hint="Check the key after NAME= in --tenant.",
            )
        if status != 200:
            raise TargetRefusedError(
                f"The target answers /v1/models with HTTP {status}.",
                hint="The audit needs an OpenAI-compatible server; check the base URL.",
            )
        names = _model_names(body)
        if self._model is None:
            self._model = names[0]
        elif self._model not in names:
            raise TargetRefusedError(
                f"The target does not list a model {self._model}.",
                hint="It lists: " + ", ".join(names[:8]),
            )

    async def send(self, call: Call) -> Reply:
        """Send one call and read its stream to the end, or go away as the call says.

        Network trouble is data here: it comes back as a `FAILED` reply, never as an exception.
        """
        start_ns = time.perf_counter_ns()
        reading = ReplyReader(start_ns)
        body = {
            "model": self.model,
            "prompt": call.prompt,
            "max_tokens": call.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"logprobs": call.logprobs} if call.logprobs is not None else {}),
            **call.extra_body,
        }
        headers = self._authorization(call.tenant) | {"content-type": "application/json"}
        if call.conversation is not None:
            headers["x-kvward-conversation"] = call.conversation
        headers |= call.extra_headers
        ending = Ending.DONE
        try:
            async with asyncio.timeout(call.cancel_after_s):
                await self._stream(msgspec.json.encode(body), headers, reading)
        except TimeoutError:
            patience_ended = call.cancel_after_s is not None
            ending = Ending.CANCELLED if patience_ended else Ending.FAILED
            reading.error = None if patience_ended else "timeout"
        except (aiohttp.ClientError, OSError) as exc:
            reading.error = type(exc).__name__
        if reading.error is not None:
            ending = Ending.FAILED
        return reading.to_reply(ending)

    async def _stream(self, body: bytes, headers: Mapping[str, str], reading: ReplyReader) -> None:
        async with self._open_session.post(
            f"{self.url}/v1/completions", data=body, headers=headers
        ) as response:
            reading.status = response.status
            reading.scope_hint = response.headers.get("x-kvward-conversation-id")
            if response.status != 200:
                reading.error = f"HTTP {response.status}"
                return
            async for line in response.content:
                if line.startswith(b"data:"):
                    reading.take(line[5:].strip())
            if not reading.finished:
                reading.error = "stream ended early"

    def _authorization(self, tenant: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self._keys[tenant]}"}

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise TargetError("The target is not open.", hint="Use it in `async with`.")
        return self._session


class ReplyReader:
    """An answer while it is read: event by event, or the whole body of one that does not stream.

    Args:
        start_ns: When the request was sent, on the clock of `time.perf_counter_ns`.
    """

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.status: int | None = None
        self.ttft_ns: int | None = None
        self.finished = False
        self.error: str | None = None
        self.scope_hint: str | None = None
        self._text: list[str] = []
        self._top: list[tuple[tuple[str, float], ...]] = []
        self._usage: dict[str, Any] = {}
        self._ids: dict[str, None] = {}

    def take(self, data: bytes) -> None:
        """Take one server-sent event's data. [untrusted]"""
        if data == b"[DONE]":
            self.finished = True
            return
        try:
            chunk = msgspec.json.decode(data, type=_Chunk)
        except msgspec.MsgspecError:
            self.error = "a chunk is not what the protocol says"
            return
        if chunk.error is not None:
            self.error = str(chunk.error.get("message", "error"))[:_ERROR_TEXT_CHARACTERS]
        if chunk.id:
            self._ids[chunk.id] = None
        for choice in chunk.choices:
            if self.ttft_ns is None:
                self.ttft_ns = time.perf_counter_ns() - self.start_ns
            self._text.append(str(choice.get("text") or ""))
            with contextlib.suppress(TypeError, ValueError, AttributeError):
                for position in (choice.get("logprobs") or {}).get("top_logprobs") or []:
                    pairs = ((str(t), float(v)) for t, v in (position or {}).items())
                    self._top.append(tuple(sorted(pairs, key=lambda pair: -pair[1])))
        if chunk.usage is not None:
            self._usage = chunk.usage

    def take_whole(self, body: bytes) -> None:
        """Take the body of an answer that does not stream. [untrusted]"""
        self.take(body)
        self.finished = True

    def to_reply(self, ending: Ending) -> Reply:
        """Return what was read."""
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Reply(
            ending=ending,
            status=self.status,
            start_ns=self.start_ns,
            ttft_ns=self.ttft_ns,
            total_ns=time.perf_counter_ns() - self.start_ns,
            text="".join(self._text),
            top_logprobs=tuple(self._top),
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            completion_tokens=_count(self._usage.get("completion_tokens")),
            cached_tokens=_count(cached),
            response_ids=tuple(self._ids),
            scope_hint=self.scope_hint,
            error=self.error,
        )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _model_names(body: bytes) -> list[str]:
    try:
        names = [str(entry["id"]) for entry in msgspec.json.decode(body)["data"]]
    except (msgspec.MsgspecError, KeyError, TypeError):
        names = []
    if not names:
        raise TargetRefusedError(
            "The target's /v1/models does not list a model.",
            hint="The audit needs an OpenAI-compatible server; check the base URL.",
        )
    return names
