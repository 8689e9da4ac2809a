"""Servers on loopback for tests, each stopped by its process id or its own switch."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from kvward.cli.process import ServerProcess, free_port
from kvward.gateway import generate_api_key, render_policy
from kvward.scope import create_root_key
from kvward.terms import SharingLevel


@contextlib.contextmanager
def running(app: Any, *, lifespan: str = "auto") -> Iterator[str]:
    """Serve an ASGI application in a thread; yields its base URL."""
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            interface="asgi3",
            lifespan=lifespan,  # type: ignore[arg-type]
            log_level="error",
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        assert server.started
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def write_policy(
    folder: Path,
    *,
    upstream: str = "",
    level: SharingLevel = SharingLevel.CONVERSATION,
    tenants: tuple[str, ...] = ("a", "b"),
    keep: bool = False,
) -> tuple[dict[str, str], Path]:
    """Write a policy and a root key; returns each tenant's API key and the policy's path."""
    keys = {name: generate_api_key() for name in tenants}
    folder.mkdir(parents=True, exist_ok=True)
    create_root_key(folder / "root.key")
    (folder / "policy.toml").write_text(
        render_policy(
            deployment="test",
            tenants={name: [digest] for name, (_, digest) in keys.items()},
            level=level,
            upstream=upstream,
            keep=keep,
        )
    )
    return {name: key for name, (key, _) in keys.items()}, folder / "policy.toml"


@contextlib.contextmanager
def guarded_lab(
    folder: Path, *arguments: str, level: SharingLevel = SharingLevel.CONVERSATION
) -> Iterator[tuple[str, dict[str, str]]]:
    """Run `kvward serve` with the embedded lab; yields its URL and the tenants' keys."""
    keys, policy = write_policy(folder, level=level)
    with ServerProcess(
        ["serve", "--config", str(policy), *arguments], log=folder / "serve.log"
    ) as server:
        yield server.url, keys
