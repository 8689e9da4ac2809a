"""What the gateway itself answers, in OpenAI's shape; alike where reasons must look alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

import msgspec

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
HeaderList = list[tuple[bytes, bytes]]

_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
}


async def send_error(
    send: Send, status: HTTPStatus, message: str, *, headers: HeaderList | None = None
) -> None:
    """Send an error."""
    default = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": _TYPES.get(status, default), "param": None, "code": None}
    await send_json(send, status, {"error": error}, headers=headers)


async def send_json(
    send: Send, status: HTTPStatus, value: object, *, headers: HeaderList | None = None
) -> None:
    """Send a JSON answer."""
    body = msgspec.json.encode(value)
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send(
        {"type": "http.response.start", "status": int(status), "headers": own + (headers or [])}
    )
    await send({"type": "http.response.body", "body": body})
