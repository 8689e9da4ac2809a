"""A group of commands that are imported only when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Takes commands by the name of their module, beside those that it is given ready.

    Args:
        lazy: Module and one line of help, by the command's name. A module's command is its
            `command`.
        extras: What has to be installed for a command, where it is not the gateway.
        path: How the group is called, for messages.
    """

    def __init__(
        self,
        *arguments: Any,  # Any: click's own
        lazy: Mapping[str, tuple[str, str]],
        extras: Mapping[str, str],
        path: str,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._lazy, self._extras, self._path = lazy, extras, path

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in alphabetical order."""
        return sorted([*super().list_commands(ctx), *self._lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        try:
            command = import_module(self._lazy[cmd_name][0]).command
        except ModuleNotFoundError as exc:
            if exc.name is None or exc.name.partition(".")[0] == "kvward":
                raise
            raise click.ClickException(
                f"`{self._path} {cmd_name}` needs the package {exc.name}, which is not installed.\n"
                f"Next: pip install 'kvward[{self._extras.get(cmd_name, 'gateway')}]'"
            ) from exc
        assert isinstance(command, click.Command)  # noqa: S101 - a slip in the table
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of all commands without importing any."""
        rows = []
        for name in self.list_commands(ctx):
            ready = self.commands.get(name)
            rows.append(
                (name, self._lazy[name][1] if ready is None else ready.get_short_help_str())
            )
        with formatter.section("Commands"):
            formatter.write_dl(rows)
