"""The engine behind the gateway: one upstream request for each client request, streamed through."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from kvward.errors import UpstreamError
from kvward.gateway.answers import HeaderList, Receive, Send, send_error
from kvward.gateway.front import Passed
from kvward.gateway.owned import RETURNED_HEADERS
from kvward.gateway.policy import Policy
from kvward.gateway.spans import TOKENIZE_PATH

_CHUNK_BYTES = 64 << 10
_UNREACHABLE = "The engine cannot be reached."
_BROKEN = "The engine's answer broke off."


class Upstream:
    """A client of one engine.

    A connection goes back to the pool only after its answer has been read to the end. When a
    client leaves, or anything goes wrong, the connection is closed, which also tells the engine
    to stop. Nothing is sent twice.

    Args:
        credential: The engine's own API key, if it asks for one. [secret]
    """

    def __init__(self, policy: Policy, *, credential: str | None) -> None:
        self._policy = policy
        self._credential = credential
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        socket = self._policy.upstream_socket
        connector: aiohttp.BaseConnector
        if socket is not None:
            connector = aiohttp.UnixConnector(path=str(socket), limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._policy.limits.connect_s,
                sock_read=self._policy.limits.idle_s,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def pass_on(self, passed: Passed, receive: Receive, send: Send) -> None:
        """Send a request to the engine and its answer to the client, chunk by chunk."""
        work = asyncio.create_task(self._stream(passed, send))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def render(self, body: bytes) -> bytes | None:
        """Ask the engine how it renders a chat; None when it does not say."""
        if self._session is None:
            return None
        headers = {"Content-Type": "application/json"}
        if self._credential is not None:
            headers["Authorization"] = f"Bearer {self._credential}"
        try:
            async with self._session.post(
                self._base + TOKENIZE_PATH, data=body, headers=headers, allow_redirects=False
            ) as response:
                content = await response.read()
                return content if response.status == HTTPStatus.OK else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    @property
    def _base(self) -> str:
        if self._policy.upstream_socket:
            return "http://engine"
        return self._policy.upstream.rstrip("/")

    async def _stream(self, passed: Passed, send: Send) -> None:
        if self._session is None:
            raise UpstreamError("The upstream is not open.")
        outgoing = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in passed.headers]
        outgoing.append(("Accept-Encoding", "identity"))
        if self._credential is not None:
            outgoing.append(("Authorization", f"Bearer {self._credential}"))
        query = "?" + passed.query.decode("ascii", "replace") if passed.query else ""
        started = False
        try:
            # Leaving this block before the end of the answer closes the connection.
            async with self._session.request(
                passed.method,
                URL(self._base + passed.path + query, encoded=True),
                data=passed.body,
                headers=outgoing,
                allow_redirects=False,
            ) as response:
                await send(_start(response, passed.added))
                started = True
                async for chunk, _ in response.content.iter_chunks():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            if started:
                # The client must see a broken answer as broken: no end of the body is sent.
                raise UpstreamError(_BROKEN) from exc
            await send_error(send, HTTPStatus.BAD_GATEWAY, _UNREACHABLE, headers=passed.added)


def _start(response: aiohttp.ClientResponse, added: HeaderList) -> dict[str, object]:
    kept = [
        (name.lower(), value)
        for name, value in response.raw_headers
        if name.lower() in RETURNED_HEADERS
    ]
    return {"type": "http.response.start", "status": response.status, "headers": kept + added}


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
