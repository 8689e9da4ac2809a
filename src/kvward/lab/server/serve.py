"""Put model, engine and application together and listen."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from kvward.errors import ConfigError
from kvward.lab.behaviour import Behaviour
from kvward.lab.engine import LabEngine
from kvward.lab.interface import EngineOptions, Ward
from kvward.lab.loading import LoadedModel
from kvward.lab.server.app import create_app

# The engine's thread and the server's loop share one interpreter lock; handing it over after half
# a millisecond, not after five, keeps first tokens from waiting for a whole step.
_SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class LabServer:
    """Where and what to serve. A Unix socket wins over host and port."""

    model: LoadedModel
    options: EngineOptions
    behaviour: Behaviour
    ward: Ward | None
    api_keys: frozenset[str] | None
    host: str
    port: int
    uds: Path | None


def serve_lab(server: LabServer) -> None:
    """Serve until the process is told to stop.

    Raises:
        ConfigError: the address is in use or cannot be listened on.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    engine = LabEngine(
        server.model.weights,
        server.model.config,
        server.options,
        behaviour=server.behaviour,
        ward=server.ward,
        manifest_digest=server.model.digest,
    )
    engine.start()
    config = uvicorn.Config(
        create_app(engine=engine, model=server.model, api_keys=server.api_keys),
        host=server.host,
        port=server.port,
        uds=None if server.uds is None else str(server.uds),
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=3,
    )
    try:
        uvicorn.Server(config).run()
    except SystemExit as exc:  # uvicorn's way to say that it could not bind
        place = server.uds if server.uds is not None else f"{server.host}:{server.port}"
        raise ConfigError(
            f"The server cannot listen on {place}.",
            hint="Another program may have it; choose another --port.",
        ) from exc
    finally:
        engine.stop()
