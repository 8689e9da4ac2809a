"""The ASGI application: principal, route, scope, upstream, in this order."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from kvward.errors import UnauthenticatedError, UpstreamError, UsageError
from kvward.events import EventSink
from kvward.gateway.answers import HeaderList, Message, Receive, Send, send_error, send_json
from kvward.gateway.identity import KeyTable
from kvward.gateway.owned import CONVERSATION_HEADER, FORWARDED_HEADERS, PSEUDONYM_HEADER
from kvward.gateway.policy import Policy
from kvward.gateway.rewrite import parse_body, rewrite
from kvward.gateway.routes import HEALTH_PATH, Route, find_route
from kvward.gateway.upstream import Upstream
from kvward.scope import ScopeIssuer

Application = Callable[[Message, Receive, Send], Awaitable[None]]


class _RefusedError(UsageError):
    """A request that is answered here. Never leaves the application."""

    code = "usage.refused"

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def create_gateway(
    policy: Policy, *, issuer: ScopeIssuer, events: EventSink, credential: str | None
) -> Application:
    """Return the gateway.

    Args:
        issuer: Of the policy's deployment.
        events: Takes "gateway.forwarded" and "gateway.refused" with a reason.
        credential: The engine's own API key. [secret]
    """
    return _Gateway(policy, issuer, events, credential).handle


class _Gateway:
    def __init__(
        self, policy: Policy, issuer: ScopeIssuer, events: EventSink, credential: str | None
    ) -> None:
        self._policy = policy
        self._issuer = issuer
        self._events = events
        self._keys = KeyTable(policy.tenants)
        self._upstream = Upstream(policy, credential=credential)

    async def handle(self, asgi_scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection event. WebSockets and the unknown are closed unanswered."""
        if asgi_scope["type"] == "lifespan":
            await self._live(receive, send)
        elif asgi_scope["type"] == "http":
            request_id = [(b"x-request-id", secrets.token_hex(16).encode())]
            try:
                await self._answer(asgi_scope, receive, send, request_id)
            except UnauthenticatedError as exc:
                self._events.emit("gateway.refused", reason="unauthenticated")
                await send_error(send, HTTPStatus.UNAUTHORIZED, exc.message, headers=request_id)
            except _RefusedError as exc:
                self._events.emit("gateway.refused", reason=str(int(exc.status)))
                await send_error(send, exc.status, exc.message, headers=request_id)
            except UpstreamError:
                # Half an answer was sent. Without its end, the server closes the connection, and
                # the client sees that it broke.
                self._events.emit("gateway.broken")
            except UsageError as exc:
                self._events.emit("gateway.refused", reason="400")
                await send_error(send, HTTPStatus.BAD_REQUEST, exc.message, headers=request_id)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._upstream.__aenter__()
            else:
                await self._upstream.__aexit__(None, None, None)
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _answer(
        self, asgi_scope: Message, receive: Receive, send: Send, request_id: HeaderList
    ) -> None:
        raw_path = asgi_scope.get("raw_path") or asgi_scope["path"].encode()
        if raw_path == HEALTH_PATH.encode():
            await send_json(send, HTTPStatus.OK, {"status": "ok"})
            return
        headers = asgi_scope["headers"]
        # Who asks comes first: without a key, nobody learns which routes there are.
        tenant = self._keys.tenant_of(headers)
        route = find_route(asgi_scope["method"], raw_path)
        if isinstance(route, HTTPStatus):
            raise _RefusedError(route, "This route is not available here.")
        body, added = None, request_id
        if route.method == "POST":
            content = await self._read_body(receive)
            # In a thread: the keyring may be a database elsewhere.
            body, added = await asyncio.to_thread(
                self._rewrite, route, tenant, headers, content, request_id
            )
        self._events.emit("gateway.forwarded")
        await self._upstream.pass_on(
            route.method,
            route.path,
            headers=[(name, value) for name, value in headers if name in FORWARDED_HEADERS],
            body=body,
            added=added,
            receive=receive,
            send=send,
        )

    def _rewrite(
        self,
        route: Route,
        tenant: str,
        headers: HeaderList,
        content: bytes,
        request_id: HeaderList,
    ) -> tuple[bytes, HeaderList]:
        level = route.level(self._policy.levels)
        if level is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "This route is not available here.")
        rewritten = rewrite(
            parse_body(content, content_type=_single(headers, b"content-type") or b""),
            tenant=tenant,
            level=level,
            owner_tags=self._policy.store is not None,
            conversation=_conversation(headers),
            issuer=self._issuer,
            draw=secrets.token_bytes,
        )
        if rewritten.scope is None:
            self._events.emit("gateway.keyring-out")
        pseudonym = rewritten.pseudonym.encode()
        return rewritten.body, [*request_id, (PSEUDONYM_HEADER, pseudonym)]

    async def _read_body(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        total = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise UsageError("The client left.")
            parts.append(message.get("body", b""))
            total += len(parts[-1])
            if total > self._policy.limits.max_body_bytes:
                raise _RefusedError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request body is too large."
                )
            if not message.get("more_body", False):
                return b"".join(parts)


def _single(headers: HeaderList, name: bytes) -> bytes | None:
    values = [value for key, value in headers if key == name]
    if len(values) > 1:
        raise UsageError(f"The header {name.decode()} comes twice.")
    return values[0] if values else None


def _conversation(headers: HeaderList) -> str | None:
    value = _single(headers, CONVERSATION_HEADER)
    return None if value is None else value.decode("latin-1")
