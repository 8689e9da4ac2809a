"""`kvward gateway`: prepare keys, tenants and policy."""

from __future__ import annotations

from pathlib import Path

import click

from kvward.cli.policy_check import command as check
from kvward.cli.prefix import command as prefix
from kvward.errors import ConfigError
from kvward.gateway import generate_api_key, render_policy
from kvward.scope import create_root_key
from kvward.terms import SharingLevel

POLICY_NAME = "policy.toml"
LEVELS = [level.value for level in SharingLevel if level is not SharingLevel.PUBLIC]


@click.group("gateway")
def command() -> None:
    """Prepare the gateway."""


@command.command("init")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    required=True,
    metavar="NAME",
    help="A tenant; may be given again.",
)
@click.option(
    "--level",
    required=True,
    type=click.Choice(LEVELS),
    help="How far cached state is shared. There is no default.",
)
@click.option(
    "--upstream",
    default="",
    metavar="URL",
    help="http://HOST:PORT or unix:PATH; empty for the lab's own engine, or inside vLLM.",
)
@click.option("--deployment", default="local", show_default=True)
@click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="NAME",
    help="Somebody who may use the engine's administrative routes; may be given again.",
)
@click.option("--keep", is_flag=True, help="Keep keys in a keyring and state in a sealed store.")
def init(
    *, folder: Path, tenants: tuple[str, ...], level: str, upstream: str, deployment: str,
    operators: tuple[str, ...], keep: bool,
) -> None:  # fmt: skip
    """Write a policy and a root key to DIR, and print everybody's API key, once."""
    policy = folder / POLICY_NAME
    if policy.exists():
        raise ConfigError(f"{policy} exists already.", hint="Name another folder.")
    if twice := set(tenants) & set(operators):
        raise ConfigError(
            f"{min(twice)} is a tenant and an operator.", hint="Name them differently."
        )
    keys = {name: generate_api_key() for name in (*tenants, *operators)}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        create_root_key(folder / "root.key")
        policy.write_text(
            render_policy(
                deployment=deployment,
                tenants={name: [keys[name][1]] for name in tenants},
                operators={name: [keys[name][1]] for name in operators},
                level=SharingLevel(level),
                upstream=upstream,
                keep=keep,
            ),
            encoding="utf-8",
        )
    except OSError as exc:
        raise ConfigError(f"{folder} cannot be written: {exc.strerror}.") from exc
    for name, (key, _) in keys.items():
        click.echo(f"{name}={key}")
    click.echo(f"Wrote {policy}. The keys above are not stored; keep them.", err=True)


command.add_command(check)
command.add_command(prefix)


@command.command("key")
def make_key() -> None:
    """Print a fresh API key and the hash that goes into the policy."""
    key, digest = generate_api_key()
    click.echo(f"key        {key}\nkey_sha256 {digest}")
