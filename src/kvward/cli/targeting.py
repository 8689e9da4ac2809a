"""Whom `audit` and `replay` send to and under which keys, as they are told."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import click

from kvward.audit.target import (
    PRESETS,
    Control,
    Controls,
    Preset,
    load_controls,
    load_template,
)
from kvward.audit.target.controls import flush_command as flush_controls
from kvward.cli.credential import is_in_environment, is_loopback, parse_key
from kvward.errors import ConfigError

MAX_RPS = click.option(
    "--max-rps", type=float, help="Begin at most this many requests in a second."
)
MAX_REQUESTS = click.option("--max-requests", type=int, help="Send at most this many requests.")
OUT = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for history and reports; a new one by default.",
)
PLAN_ONLY = click.option("--plan-only", is_flag=True, help="Print the plan and send nothing of it.")
AUTHORISED = click.option(
    "--authorised",
    is_flag=True,
    help="Say that the target's owner agrees; needed for any but a loopback address.",
)


def choose_controls(command: str | None, file: Path | None, cache_tier: str | None) -> Controls:
    """Return the operator's controls, checked against the tier that they are needed for.

    Raises:
        ConfigError: They say the same twice, or lack what the tier needs.
    """
    if command is not None and file is not None:
        raise ConfigError(
            "--flush-device and --controls say the same.",
            hint="Put the command under [flush-device] into the file.",
        )
    if command is not None and cache_tier is None:
        raise ConfigError(
            "--flush-device and --cache-tier belong together.",
            hint="For example --flush-device 'systemctl restart engine' --cache-tier disk",
        )
    controls = Controls({})
    if command is not None:
        controls = flush_controls(command)
    elif file is not None:
        controls = load_controls(file)
    if cache_tier is not None and Control.FLUSH_DEVICE not in controls:
        raise ConfigError(
            "--cache-tier needs a control that empties the engine's own memory.",
            hint="Give --flush-device COMMAND, or --controls with a section [flush-device].",
        )
    return controls


def choose_preset(name: str | None, template: Path | None) -> Preset | None:
    """Return what the target is said to be; None where it has to be asked.

    Raises:
        ConfigError: It is said twice, or the template cannot be read.
    """
    if name is not None and template is not None:
        raise ConfigError("--preset and --template say the same.", hint="Give one of them.")
    if template is not None:
        return load_template(template)
    return None if name is None else PRESETS[name]


def parse_tenants(texts: tuple[str, ...], *, literal: bool) -> dict[str, str]:
    """Return the key of each tenant. [secret]

    Args:
        literal: Whether keys may be written down, where every user of the machine can read them.
    Raises:
        ConfigError: Fewer than two tenants, two with one name or one key, or a key that is
            written where it may not be.
    """
    keys: dict[str, str] = {}
    for text in texts:
        name, separator, key = text.partition("=")
        if not separator or not name or not key:
            # The text may hold a key, so it is not repeated.
            raise ConfigError(
                "A --tenant is not written as NAME=KEY.", hint="For example --tenant a=env:KEY_A"
            )
        if not literal and not is_in_environment(key):
            raise ConfigError(
                f"The key of tenant {name} is written on the command line, where others on this "
                "machine can read it.",
                hint=f"Put it into a variable and give --tenant {name}=env:VARIABLE",
            )
        if name in keys:
            raise ConfigError(f"The tenant {name} is given twice.", hint="Name them differently.")
        keys[name] = parse_key(key)
    if len(set(keys.values())) < len(keys):
        raise ConfigError(
            "Two tenants have one key, so the target cannot tell them apart.",
            hint="Use keys of two different tenants.",
        )
    if len(keys) < 2:
        raise ConfigError(
            "An audit needs two tenants: one whose state could leak and one who could read it.",
            hint="Give --tenant NAME=KEY twice, with keys of two different tenants.",
        )
    return keys


def check_authorised(url: str, *, authorised: bool) -> None:
    """Check that an address is this machine's own, or that its owner agrees.

    Raises:
        ConfigError: Neither.
    """
    if not is_loopback(url) and not authorised:
        host = urlsplit(url).hostname
        raise ConfigError(
            f"{host} is not this machine, and an audit is a load test.",
            hint="If its owner agrees, say so with --authorised.",
        )
