"""Listen with uvicorn until told to stop, and leave in good order."""

from __future__ import annotations

import contextlib
import signal
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


def listen(app: Application, *, host: str, port: int, uds: Path | None) -> None:
    """Serve an ASGI application; returns after SIGTERM or Ctrl-C.

    Args:
        uds: A Unix socket, instead of host and port.
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
    with _signals_end_the_block():
        try:
            uvicorn.Server(config).run()
        except SystemExit as exc:  # uvicorn's way to say that it could not bind
            place = f"{host}:{port}" if uds is None else str(uds)
            raise ConfigError(
                f"Nothing can listen on {place}.",
                hint="Another program may have it; choose another --port.",
            ) from exc


class _ToldToStop(BaseException):
    """Ends the block below; never leaves it."""


@contextlib.contextmanager
def _signals_end_the_block() -> Iterator[None]:
    # uvicorn raises the signal again after it has shut down. The default action of SIGTERM would
    # end the process before anything else is cleaned up.
    def stop(number: int, frame: object) -> None:  # noqa: ARG001 - a handler's signature
        raise _ToldToStop

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except _ToldToStop:
        pass
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
