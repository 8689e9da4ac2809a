"""Listen with uvicorn until told to stop, and leave in good order."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn

from kvward.errors import ConfigError

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


@contextlib.contextmanager
def ends_when_told() -> Iterator[None]:
    """End the block on SIGTERM or Ctrl-C as if it had come to its end, closing all it opened."""

    def stop(_number: int, _frame: object) -> None:
        raise _ToldToStop

    with _handled(stop), contextlib.suppress(_ToldToStop):
        yield


def listen(
    app: Application,
    *,
    host: str,
    port: int,
    uds: Path | None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve an ASGI application; returns after SIGTERM or Ctrl-C.

    Args:
        uds: A Unix socket, instead of host and port.
        ready: Called once connections are accepted.
    Raises:
        ConfigError: the address is in use, or cannot be listened on.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        uds=None if uds is None else str(uds),
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=3,
    )
    server = _Server(config, ready)

    # An exception raised by a handler is lost in the event loop, and uvicorn sends a signal that it
    # took to our handler once more after it has shut down. So a signal only says so here.
    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    with _handled(stop):
        try:
            server.run()
        except SystemExit as exc:  # uvicorn's way to say that it could not bind
            place = f"{host}:{port}" if uds is None else str(uds)
            raise ConfigError(
                f"Nothing can listen on {place}.",
                hint="Another program may have it; choose another --port.",
            ) from exc


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class _ToldToStop(BaseException):
    """Ends a block of `ends_when_told`; never leaves it."""


@contextlib.contextmanager
def _handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    previous = {
        number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
