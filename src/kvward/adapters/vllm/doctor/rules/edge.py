"""Who can reach the engine, and who decides the scope of a request."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kvward.adapters.vllm.doctor.command_line import Program
from kvward.adapters.vllm.doctor.finding import Finding, Severity, not_understood
from kvward.adapters.vllm.doctor.setup import WARD_MIDDLEWARE, Reach, Setup

_SOCKET = (
    "Let it listen on a Unix socket in a folder of the gateway's user: --uds PATH here, unix:PATH "
    "as the gateway's upstream."
)


def find(setup: Setup) -> Iterator[Finding]:
    """Judge program, scope, address, keys, middleware and browsers."""
    yield from _program(setup)
    yield from _scope(setup)
    yield from _address(setup)
    yield from _keys(setup)
    yield from _middleware(setup)
    yield from _browsers(setup)


def _program(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    if line.program is Program.BATCH:
        yield Finding(
            id="run-batch",
            severity=Severity.DEFEATS,
            setting="run-batch",
            why="Requests come from a file, past gateway and middleware, and the file writes the "
            "salts.",
            mend="Send the requests to a server through the gateway, or run one batch per tenant.",
        )
    if line.program is Program.GRPC or line.is_on("grpc") or line.value("grpc-port"):
        yield Finding(
            id="grpc",
            severity=Severity.DEFEATS,
            setting=line.shown("grpc-port") if line.value("grpc-port") else "gRPC server",
            why="Requests over gRPC pass neither gateway nor middleware.",
            mend="Serve HTTP only.",
        )
    if setup.environment.is_on("VLLM_USE_RUST_FRONTEND"):
        yield Finding(
            id="rust-front-end",
            severity=Severity.DEFEATS if not setup.behind_gateway else Severity.UNKNOWN,
            setting=setup.environment.shown("VLLM_USE_RUST_FRONTEND"),
            why="The Rust front end runs no Python middleware, and what it does with salts was not "
            "examined.",
            mend="Leave the variable away, so that the Python front end serves.",
        )


def _scope(setup: Setup) -> Iterator[Finding]:
    if setup.is_guarded or setup.command_line.program is Program.BATCH:
        return
    yield Finding(
        id="scope-from-caller",
        severity=Severity.DEFEATS,
        setting=f"no --middleware {WARD_MIDDLEWARE}",
        why="Whoever asks writes the salt: without one all callers are one scope, and with one "
        "each may choose another's.",
        mend="Add the middleware, or say --behind-gateway if every request comes through "
        "`kvward serve`.",
    )


def _address(setup: Setup) -> Iterator[Finding]:
    # Inside the server the ward sees every request, from wherever it comes.
    if setup.has_ward or setup.command_line.program is not Program.SERVER:
        return
    host = setup.command_line.value("host")
    shown = f"--host {host}" if host is not None else "no --uds and no --host"
    if setup.reach is Reach.NETWORK:
        yield Finding(
            id="reachable-by-others",
            severity=Severity.DEFEATS,
            setting=shown,
            why="Other machines reach the engine past the gateway; a key does not stop them, for "
            "vLLM asks for it under /v1, /v2, /inference and /cohere only, and /invocations "
            "answers without.",
            mend=_SOCKET,
        )
    elif setup.reach is Reach.LOOPBACK:
        yield Finding(
            id="reachable-on-this-machine",
            severity=Severity.WEAKENS,
            setting=shown,
            why="Every process of this machine reaches the engine past the gateway, on some routes "
            "without a key.",
            mend=_SOCKET,
        )


def _keys(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    given = [key for key in line.values.get("api-key", ()) if key not in {"", "None"}]
    # The option wins even when it says None: then there is no key, whatever the variable holds.
    asked = "api-key" in line.values
    has_key = bool(given) if asked else setup.environment.text("VLLM_API_KEY") is not None
    if not has_key and not setup.has_ward and setup.reach is not Reach.FILE:
        yield Finding(
            id="no-api-key",
            severity=Severity.WEAKENS if setup.reach is Reach.LOOPBACK else Severity.DEFEATS,
            setting="no --api-key",
            why="Whoever reaches the port is answered.",
            mend="Use a Unix socket, or a key that only the gateway has, in VLLM_API_KEY.",
        )
    if has_key and not setup.is_guarded:
        yield Finding(
            id="keys-are-equal",
            severity=Severity.DEFEATS,
            setting="--api-key" if given else "VLLM_API_KEY",
            why="vLLM asks whether a key is right and not whose it is, so tenants with keys are "
            "one tenant.",
            mend="Give tenants keys of the gateway, and the engine's key to nobody else.",
        )
    elif len(given) > 1 and not setup.has_ward:
        yield Finding(
            id="several-api-keys",
            severity=Severity.WEAKENS,
            setting="--api-key with several keys",
            why="The gateway needs one key, and whoever holds another goes past it.",
            mend="Keep one key, for the gateway.",
        )
    if given and not setup.has_ward and setup.reach is not Reach.FILE:
        yield Finding(
            id="key-in-process-list",
            severity=Severity.WEAKENS,
            setting="--api-key",
            why="Every user of this machine can read the arguments of its processes.",
            mend="Put the key into VLLM_API_KEY.",
        )


def _middleware(setup: Setup) -> Iterator[Finding]:
    for name in setup.middleware:
        if name != WARD_MIDDLEWARE:
            yield Finding(
                id="other-middleware",
                severity=Severity.UNKNOWN,
                setting=f"--middleware {name}",
                why="It sees every request and may change it, and was not examined.",
                mend="Leave it away, or put it in front of the gateway.",
            )
    if setup.has_ward and setup.middleware[-1] != WARD_MIDDLEWARE:
        yield Finding(
            id="ward-not-outermost",
            severity=Severity.WEAKENS,
            setting=f"--middleware {setup.middleware[-1]} after ours",
            why="The middleware named last sees requests first, before tenants are known, and may "
            "answer them itself.",
            mend=f"Name {WARD_MIDDLEWARE} last.",
        )


def _browsers(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    text = line.value("allowed-origins")
    if text is None:
        return
    try:
        origins = json.loads(text)
    except (ValueError, RecursionError):
        origins = None
    if not isinstance(origins, list):
        yield not_understood(line.shown("allowed-origins"), "Its value is not a JSON list.")
    elif "*" in origins:
        with_credentials = line.is_on("allow-credentials")
        yield Finding(
            id="any-origin",
            severity=setup.severity(bare=Severity.DEFEATS, guarded=Severity.WEAKENS)
            if with_credentials
            else Severity.WEAKENS,
            setting=line.shown("allowed-origins")
            + (" --allow-credentials" if with_credentials else ""),
            why="Any page in a tenant's browser may ask in the tenant's place and read the answer.",
            mend="Leave it away, and name the origins that you serve in front of the gateway.",
        )
