"""`kvward serve`: the gateway, in front of an engine or of the lab's own."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kvward.cli.gateway import LEVELS
from kvward.cli.lab import engine_options
from kvward.cli.listen import ends_when_told, listen
from kvward.cli.process import ServerProcess
from kvward.events import EventCounter
from kvward.gateway import (
    Policy,
    create_gateway,
    generate_api_key,
    honour_policy_contract,
    load_credential,
    make_policy,
    open_issuer,
    read_policy,
)
from kvward.keeping import RegisteredPrefix, load_public_prefixes, read_policy_file
from kvward.scope import RootKey, ScopeIssuer


@click.command("serve")
@click.option("--config", type=click.Path(path_type=Path), help="Policy; see `kvward gateway`.")
@click.option("--upstream", metavar="URL", help="Engine to guard; without it, the lab's own.")
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    help="Without --config: how far cached state is shared. Without it, not at all.",
)
@click.option(
    "--edge-only",
    is_flag=True,
    help="Leave out the ward inside the embedded engine; the gateway remains.",
)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8100, show_default=True)
@engine_options
def command(
    *,
    config: Path | None,
    upstream: str | None,
    level: str | None,
    edge_only: bool,
    host: str,
    port: int,
    model: str,
    defects: tuple[str, ...],
    defect_seed: int,
    blocks: int,
    host_blocks: int,
    host_steps: int,
    host_fault_rate: float,
    no_prefix_cache: bool,
) -> None:  # fmt: skip
    """Run the gateway.

    With --upstream it guards a running engine. Without, it starts the lab's engine behind a Unix
    socket that nobody else can reach, with a ward inside. Without --config it makes a policy for
    one tenant and prints its API key.
    """
    with ends_when_told(), contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvward-")))
        values = {} if config is None else read_policy_file(config)
        embedded = upstream is None and not values.get("upstream")
        socket = folder / "engine.sock"
        target = f"unix:{socket}" if embedded else upstream or values.get("upstream")
        if config is None:
            setup = _setup_for_one(level, target)
        else:
            setup = stack.enter_context(_setup_from_file(config, target))
        if embedded:
            arguments = ["lab", "serve", "--model", model, "--blocks", str(blocks)]
            arguments += ["--host-blocks", str(host_blocks), "--host-steps", str(host_steps)]
            arguments += ["--host-fault-rate", str(host_fault_rate)]
            arguments += [part for name in defects for part in ("--defect", name)]
            arguments += ["--defect-seed", str(defect_seed)]
            arguments += ["--no-prefix-cache"] if no_prefix_cache else []
            arguments += [] if edge_only else ["--ward-key-stdin"]
            if setup.policy.store is not None and not edge_only:
                arguments += ["--ward-config", str(config)]
            secret = b"" if edge_only else setup.issuer.token_key.reveal()
            click.echo(f"Starting the lab engine with {model} …", err=True)
            stack.enter_context(
                ServerProcess(arguments, log=folder / "engine.log", uds=socket, secret=secret)
            )
        _run(setup, host=host, port=port)


@dataclass(frozen=True, kw_only=True)
class _Setup:
    policy: Policy
    issuer: ScopeIssuer
    credential: str | None
    prefixes: Sequence[RegisteredPrefix]


@contextlib.contextmanager
def _setup_from_file(config: Path, upstream: object) -> Iterator[_Setup]:
    kept = read_policy(config, upstream=upstream)
    credential = load_credential(kept.settings)
    prefixes = load_public_prefixes(kept.settings, kept.folder)
    for note in honour_policy_contract(kept, prefixes):
        click.echo(note, err=True)
    with open_issuer(kept) as issuer:
        yield _Setup(
            policy=kept.settings,
            issuer=issuer,
            credential=credential,
            prefixes=prefixes,
        )


def _setup_for_one(level: str | None, upstream: object) -> _Setup:
    """Make a policy and a root key for this run only."""
    key, digest = generate_api_key()
    chosen = level or "request"
    policy = make_policy(
        {
            "deployment": "ephemeral",
            "root_key_file": "",
            "upstream": upstream,
            "levels": {"chat_completions": chosen, "completions": chosen},
            "tenants": [{"name": "local", "key_sha256": [digest]}],
        },
        source="the policy of this run",
    )
    if level is None:
        click.echo(
            "No level was chosen, so no request shares cached state with another one. "
            "Choose, for example, --level conversation.",
            err=True,
        )
    click.echo(f"API key of this run: {key}", err=True)
    issuer = ScopeIssuer.from_root_key(RootKey(os.urandom(32)), deployment=policy.deployment)
    return _Setup(policy=policy, issuer=issuer, credential=None, prefixes=())


def _run(setup: _Setup, *, host: str, port: int) -> None:
    app = create_gateway(
        setup.policy,
        issuer=setup.issuer,
        events=EventCounter(),
        credential=setup.credential,
        prefixes=setup.prefixes,
    )

    def ready() -> None:
        click.echo(f"kvward guards {setup.policy.upstream} at http://{host}:{port}", err=True)

    listen(app, host=host, port=port, uds=None, ready=ready)
