"""`kvward contract`: what is promised about cached state."""

from __future__ import annotations

import click

from kvward.cli.contract_providers import COMMANDS


@click.group("contract")
def command() -> None:
    """What is promised about cached state, and by whom."""


for _provider_command in COMMANDS:
    command.add_command(_provider_command)
