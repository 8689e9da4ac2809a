"""The ward as middleware of vLLM's API server: the front, and the application inside it.

    KVWARD_POLICY=gate/policy.toml python -m vllm.entrypoints.openai.api_server … \\
        --middleware kvward.gateway.vllm.WardMiddleware

vLLM gives middleware no arguments, makes one for each API process, and puts it around its own
authentication. Nothing of vLLM is imported: this is an ASGI application around another one.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import secrets
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

from kvward.errors import ConfigError, KvwardError
from kvward.events import EventCounter, EventSink
from kvward.gateway.answers import HeaderList, Message, Receive, Send, send_error
from kvward.gateway.app import Application
from kvward.gateway.front import REQUEST_ID_HEADER, Front, Passed, refuse_websocket
from kvward.gateway.inventory import Inventory, take_inventory
from kvward.gateway.owned import RETURNED_HEADERS
from kvward.gateway.policy import read_policy
from kvward.gateway.promise import honour_policy_contract
from kvward.gateway.setup import load_credential, open_issuer
from kvward.gateway.spans import TOKENIZE_PATH
from kvward.gateway.summary import summarise_policy
from kvward.keeping import POLICY_VARIABLE, load_public_prefixes

_KEPT_OF_SCOPE = ("type", "asgi", "http_version", "scheme", "client", "server", "app", "state")
_LOG = logging.getLogger("vllm.kvward.gateway")  # under vLLM's name, or its handlers do not see it


@dataclass(frozen=True, kw_only=True)
class _Opened:
    front: Front
    credential: str | None


class WardMiddleware:
    """Decides the scope of every request before the application sees it.

    Opens keyring and policy when the application starts, and refuses its start if that fails.
    Where no start is announced it opens them at the first request, and answers 503 until it can.

    Args:
        app: The application inside.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._events: EventSink = EventCounter()
        self._stack = contextlib.ExitStack()
        self._opened: _Opened | None = None
        self._opening = asyncio.Lock()

    async def __call__(self, asgi_scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection. What is neither HTTP nor the announcement of a start ends here."""
        match asgi_scope["type"]:
            case "lifespan":
                await self._live(asgi_scope, receive, send)
            case "http":
                try:
                    opened = await self._open(asgi_scope)
                except KvwardError as exc:
                    _LOG.error("The ward cannot be opened: %s", _say(exc))
                    await send_error(
                        send, HTTPStatus.SERVICE_UNAVAILABLE, "The gateway is not ready."
                    )
                    return
                inside = partial(self._pass_inside, asgi_scope, opened.credential)
                render = partial(self._render, asgi_scope, opened.credential)
                await opened.front.answer(asgi_scope, receive, send, pass_on=inside, render=render)
            case "websocket":
                await refuse_websocket(receive, send)

    async def _live(self, asgi_scope: Message, receive: Receive, send: Send) -> None:
        first: Message | None = await receive()
        try:
            await self._open(asgi_scope)
        except Exception as exc:  # noqa: BLE001 - whatever it is, no engine starts unguarded
            message = f"The ward cannot be opened: {_say(exc)}"
            _LOG.critical(message)
            await send({"type": "lifespan.startup.failed", "message": message})
            return

        async def receive_again() -> Message:
            nonlocal first
            if first is not None:
                message, first = first, None
                return message
            return await receive()

        try:
            await self._app(asgi_scope, receive_again, send)
        finally:
            self._opened = None
            await asyncio.to_thread(self._stack.close)

    async def _open(self, asgi_scope: Message) -> _Opened:
        if self._opened is None:
            async with self._opening:
                if self._opened is None:
                    inventory = take_inventory(asgi_scope.get("app"))
                    self._opened = await asyncio.to_thread(self._open_now, inventory)
                    self._report(inventory)
        return self._opened

    def _open_now(self, inventory: Inventory) -> _Opened:
        path = os.environ.get(POLICY_VARIABLE)
        if not path:
            raise ConfigError(
                f"The environment variable {POLICY_VARIABLE} is not set.",
                hint="Name the policy's file in it: kvward gateway init DIR --tenant NAME …",
            )
        kept = read_policy(Path(path))
        credential = load_credential(kept.settings)
        issuer = self._stack.enter_context(open_issuer(kept))
        atexit.register(self._stack.close)
        prefixes = load_public_prefixes(kept.settings, kept.folder)
        for note in honour_policy_contract(kept, prefixes):
            _LOG.warning(note)
        front = Front(
            kept.settings,
            issuer=issuer,
            events=self._events,
            inventory=inventory,
            prefixes=prefixes,
        )
        summary = summarise_policy(kept.settings, prefixes)
        _LOG.info("The ward is in force. %s", "; ".join(f"{n}: {v}" for n, v in summary))
        return _Opened(front=front, credential=credential)

    def _report(self, inventory: Inventory) -> None:
        if inventory.found is None:
            self._events.emit("gateway.routes-unseen")
            _LOG.warning("The application does not show its routes; unknown ones are refused.")
        for found in inventory.unknown:
            self._events.emit("gateway.route-unknown", route=found.path)
            _LOG.warning("%s %s is not known, and is refused.", found.method, found.path)

    async def _render(
        self, asgi_scope: Message, credential: str | None, body: bytes
    ) -> bytes | None:
        """Ask the application inside how it renders a chat; None when it does not say."""
        asked = Passed(
            method="POST",
            path=TOKENIZE_PATH,
            query=b"",
            headers=[(b"content-type", b"application/json")],
            body=body,
            request_id=secrets.token_hex(16).encode(),
            added=[],
        )
        status, parts = 0, []
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()  # nobody leaves while we wait for the answer
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self._app(_rebuilt(asgi_scope, asked, credential), receive, send)
        return b"".join(parts) if status == HTTPStatus.OK else None

    async def _pass_inside(
        self,
        asgi_scope: Message,
        credential: str | None,
        passed: Passed,
        receive: Receive,
        send: Send,
    ) -> None:
        rest: list[bytes] = [passed.body or b""]

        async def receive_rewritten() -> Message:
            if rest:
                return {"type": "http.request", "body": rest.pop(), "more_body": False}
            # What is left to hear of the client is that it leaves.
            while (message := await receive())["type"] == "http.request":
                pass
            return message

        async def send_filtered(message: Message) -> None:
            if message["type"] == "http.response.start":
                given: HeaderList = [(n.lower(), v) for n, v in message.get("headers", [])]
                kept = [(n, v) for n, v in given if n in RETURNED_HEADERS]
                message = {**message, "headers": kept + passed.added}
            await send(message)

        inner = _rebuilt(asgi_scope, passed, credential)
        # An error inside goes on to the server, which breaks off what it had begun to send.
        await self._app(inner, receive_rewritten, send_filtered)


def _say(error: Exception) -> str:
    if not isinstance(error, KvwardError):
        return repr(error)
    return error.message if error.hint is None else f"{error.message} Next: {error.hint}"


def _rebuilt(asgi_scope: Message, passed: Passed, credential: str | None) -> Message:
    """Return the scope of the request that is passed inside: made anew, not the caller's edited."""
    headers = [*passed.headers, (REQUEST_ID_HEADER, passed.request_id)]
    headers.append((b"content-length", str(len(passed.body or b"")).encode()))
    if credential is not None:
        headers.append((b"authorization", b"Bearer " + credential.encode()))
    kept = {name: asgi_scope[name] for name in _KEPT_OF_SCOPE if name in asgi_scope}
    return kept | {
        "method": passed.method,
        "path": passed.path,
        "raw_path": passed.path.encode(),
        "root_path": "",
        "query_string": passed.query,
        "headers": headers,
    }
