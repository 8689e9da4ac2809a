"""What both deployments have in common: principal, route, body, scope, in this order.

They differ in how a request is passed on: to an engine elsewhere (`app`), or to the application
that the ward was put around (`vllm`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from kvward.errors import UnauthenticatedError, UpstreamError, UsageError
from kvward.events import EventSink
from kvward.gateway.answers import HeaderList, Message, Receive, Send, send_error, send_json
from kvward.gateway.body import parse_body
from kvward.gateway.identity import KeyTable, Principal
from kvward.gateway.inventory import Inventory
from kvward.gateway.owned import CONVERSATION_HEADER, FORWARDED_HEADERS, PSEUDONYM_HEADER
from kvward.gateway.policy import Policy
from kvward.gateway.rewrite import rewrite, strip
from kvward.gateway.routes import find_open_route, find_route
from kvward.gateway.shapes import CHAT
from kvward.gateway.spans import BoundaryFinder, Render
from kvward.gateway.table import HEALTH_PATH, SUMMARY_PATH, Kind, Route
from kvward.gateway.warm import ENGINE_PATH, WARM_PATH, write_warm_up
from kvward.keeping import RegisteredPrefix
from kvward.scope import ScopeIssuer

REQUEST_ID_HEADER = b"x-request-id"
_POLICY_VIOLATION = 1008


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A request as it may be passed on: nothing in it is as the caller sent it unless it may be.

    Attributes:
        path: From the gateway's own table of routes.
        query: Empty but for operators.
        headers: Those of the caller that may pass.
        body: None where the method has none.
        request_id: Fresh, for engine and caller.
        added: Headers that the gateway adds to the answer.
    """

    method: str
    path: str
    query: bytes
    headers: HeaderList
    body: bytes | None
    request_id: bytes
    added: HeaderList


PassOn = Callable[[Passed, Receive, Send], Awaitable[None]]


class _RefusedError(UsageError):
    """A request that is answered here. Never leaves the front."""

    code = "usage.refused"

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Front:
    """Answers or passes on the requests of one deployment.

    Args:
        issuer: Of the policy's deployment.
        events: Takes "gateway.forwarded", "gateway.operator" with a route, and "gateway.refused"
            with a reason.
        inventory: Of the running application's routes, where they can be seen.
        prefixes: The policy's public prefixes, which operators may warm up.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        issuer: ScopeIssuer,
        events: EventSink,
        inventory: Inventory,
        prefixes: Sequence[RegisteredPrefix],
    ) -> None:
        self._policy = policy
        self._issuer = issuer
        self._events = events
        self._inventory = inventory
        self._prefixes = prefixes
        self._keys = KeyTable(policy.tenants, policy.operators)
        self._boundaries = BoundaryFinder(events=events)

    async def answer(
        self,
        asgi_scope: Message,
        receive: Receive,
        send: Send,
        *,
        pass_on: PassOn,
        render: Render,
    ) -> None:
        """Answer one HTTP request, or pass it on.

        Args:
            render: Asks the same engine how it renders a chat.
        """
        request_id = secrets.token_hex(16).encode()
        added = [(REQUEST_ID_HEADER, request_id)]
        try:
            passed = await self._admit(asgi_scope, receive, send, request_id, render)
            if passed is not None:
                await pass_on(passed, receive, send)
        except UnauthenticatedError as exc:
            self._events.emit("gateway.refused", reason="unauthenticated")
            await send_error(send, HTTPStatus.UNAUTHORIZED, exc.message, headers=added)
        except _RefusedError as exc:
            self._events.emit("gateway.refused", reason=str(int(exc.status)))
            await send_error(send, exc.status, exc.message, headers=added)
        except UpstreamError:
            # Half an answer was sent. Without its end, the server closes the connection, and
            # the client sees that it broke.
            self._events.emit("gateway.broken")
        except UsageError as exc:
            self._events.emit("gateway.refused", reason="400")
            await send_error(send, HTTPStatus.BAD_REQUEST, exc.message, headers=added)

    async def _admit(
        self,
        asgi_scope: Message,
        receive: Receive,
        send: Send,
        request_id: bytes,
        render: Render,
    ) -> Passed | None:
        """Return the request as it may be passed on; None when it has been answered."""
        method = asgi_scope["method"]
        raw_path = asgi_scope.get("raw_path") or asgi_scope["path"].encode()
        if raw_path == HEALTH_PATH.encode():
            await send_json(send, HTTPStatus.OK, {"status": "ok"})
            return None
        headers = asgi_scope["headers"]
        body, added = None, [(REQUEST_ID_HEADER, request_id)]
        route = find_open_route(method, raw_path)
        query = b""
        if route is None:
            # Who asks comes first: without a key, nobody learns which routes there are.
            principal = self._keys.principal_of(headers)
            route = self._route(method, raw_path, principal)
            if route.path == SUMMARY_PATH:
                await send_json(send, HTTPStatus.OK, self._inventory.to_summary(self._policy))
                return None
            if route.path == WARM_PATH:
                return await self._warm_up(receive, headers, request_id)
            if principal.is_operator:
                query = asgi_scope.get("query_string", b"")
            if route.method == "POST":
                content = await self._read_body(receive)
                body, more = await self._scoped(route, principal, headers, content, render)
                added += more
        self._events.emit("gateway.forwarded")
        return Passed(
            method=route.method,
            path=route.path,
            query=query,
            headers=[(name, value) for name, value in headers if name in FORWARDED_HEADERS],
            body=body,
            request_id=request_id,
            added=added,
        )

    async def _warm_up(self, receive: Receive, headers: HeaderList, request_id: bytes) -> Passed:
        body = await asyncio.to_thread(
            write_warm_up,
            await self._read_body(receive),
            content_type=_single(headers, b"content-type") or b"",
            prefixes=self._prefixes,
            issuer=self._issuer,
            owner_tags=self._policy.store is not None,
        )
        return Passed(
            method="POST",
            path=ENGINE_PATH,
            query=b"",
            headers=[(b"content-type", b"application/json")],
            body=body,
            request_id=request_id,
            added=[(REQUEST_ID_HEADER, request_id)],
        )

    def _route(self, method: str, raw_path: bytes, principal: Principal) -> Route:
        route = find_route(method, raw_path, principal=principal, policy=self._policy)
        if isinstance(route, HTTPStatus):
            kind = "an operator's" if principal.is_operator else "a tenant's"
            raise _RefusedError(route, f"This route is not available here with {kind} key.")
        if principal.is_operator:
            self._events.emit("gateway.operator", route=route.path)
        if route.kind is Kind.RELOAD and not self._policy.engine.allow_reload:
            raise _RefusedError(
                HTTPStatus.CONFLICT,
                "This route may change the model under cached state. The policy does not say "
                "allow_reload under [engine].",
            )
        return route

    async def _scoped(
        self,
        route: Route,
        principal: Principal,
        headers: HeaderList,
        content: bytes,
        render: Render,
    ) -> tuple[bytes, HeaderList]:
        """Return the body that may pass, and what is added to the answer's headers."""
        if route.kind in {Kind.OPERATOR, Kind.RELOAD}:
            return content, []
        if route.shape is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "This route is not available here.")
        body = parse_body(content, content_type=_single(headers, b"content-type") or b"")
        if route.kind is Kind.HARMLESS:
            return msgspec.json.encode(strip(body, shape=route.shape)), []
        level = route.level(self._policy.levels)
        if level is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "This route is not available here.")
        wide, boundary = self._policy.spans.system, None
        if wide is not None and wide.width > level.width and route.shape is CHAT:
            found = await self._boundaries.find(body, tenant=principal.name, render=render)
            boundary = None if found is None else (wide, found)
        # In a thread: the keyring may be a database elsewhere.
        rewritten = await asyncio.to_thread(
            rewrite,
            body,
            shape=route.shape,
            tenant=principal.name,
            level=level,
            owner_tags=self._policy.store is not None,
            conversation=_conversation(headers),
            boundary=boundary,
            issuer=self._issuer,
            now_unix_s=int(time.time()),
            draw=secrets.token_bytes,
        )
        if rewritten.scope is None:
            self._events.emit("gateway.keyring-out")
        return rewritten.body, [(PSEUDONYM_HEADER, rewritten.pseudonym.encode())]

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


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Close a WebSocket before it is open: what passes through it cannot be given a scope."""
    await receive()
    await send({"type": "websocket.close", "code": _POLICY_VIOLATION})


def _single(headers: HeaderList, name: bytes) -> bytes | None:
    values = [value for key, value in headers if key == name]
    if len(values) > 1:
        raise UsageError(f"The header {name.decode()} comes twice.")
    return values[0] if values else None


def _conversation(headers: HeaderList) -> str | None:
    value = _single(headers, CONVERSATION_HEADER)
    return None if value is None else value.decode("latin-1")
