"""The reverse proxy: the front, and an engine elsewhere behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kvward.events import EventSink
from kvward.gateway.answers import Message, Receive, Send
from kvward.gateway.front import Front, refuse_websocket
from kvward.gateway.inventory import NOT_SEEN
from kvward.gateway.policy import Policy
from kvward.gateway.upstream import Upstream
from kvward.keeping import RegisteredPrefix
from kvward.scope import ScopeIssuer

Application = Callable[[Message, Receive, Send], Awaitable[None]]


def create_gateway(
    policy: Policy,
    *,
    issuer: ScopeIssuer,
    events: EventSink,
    credential: str | None,
    prefixes: Sequence[RegisteredPrefix] = (),
) -> Application:
    """Return the gateway.

    Args:
        issuer: Of the policy's deployment.
        events: Takes what `kvward.gateway.front.Front` reports.
        credential: The engine's own API key. [secret]
        prefixes: The policy's public prefixes.
    """
    front = Front(policy, issuer=issuer, events=events, inventory=NOT_SEEN, prefixes=prefixes)
    upstream = Upstream(policy, credential=credential)

    async def gateway(asgi_scope: Message, receive: Receive, send: Send) -> None:
        match asgi_scope["type"]:
            case "lifespan":
                await _live(upstream, receive, send)
            case "http":
                await front.answer(
                    asgi_scope, receive, send, pass_on=upstream.pass_on, render=upstream.render
                )
            case "websocket":
                await refuse_websocket(receive, send)

    return gateway


async def _live(upstream: Upstream, receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await upstream.__aenter__()
        else:
            await upstream.__aexit__(None, None, None)
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
