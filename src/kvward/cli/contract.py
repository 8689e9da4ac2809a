"""`kvward contract`: read, check and compare what a deployment promises about its cache."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path

import click

from kvward.cli.contract_providers import COMMANDS
from kvward.contract import (
    ClauseChange,
    Direction,
    Severity,
    compare,
    contract_digest,
    contract_schema,
    lint,
    read_contract,
    render_markdown,
)
from kvward.errors import ContractError
from kvward.terms import ExitCode

_FILE = click.Path(path_type=Path, dir_okay=False)
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


class _WithCheck(click.Group):
    """Imports the auditor, and what it needs, only when evidence is to be read."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in alphabetical order."""
        return sorted([*super().list_commands(ctx), "check"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command."""
        if cmd_name != "check":
            return super().get_command(ctx, cmd_name)
        try:
            found = import_module("kvward.cli.contract_check").command
        except ModuleNotFoundError as exc:
            if exc.name is None or exc.name.partition(".")[0] == "kvward":
                raise
            raise click.ClickException(
                f"`kvward contract check` needs the package {exc.name}, which is not installed.\n"
                "Next: pip install 'kvward[audit]'"
            ) from exc
        assert isinstance(found, click.Command)  # noqa: S101 - a slip in that module
        return found


@click.group("contract", cls=_WithCheck)
def command() -> None:
    """The promise: what a deployment guarantees about its cache, and what others say of theirs."""


for _provider_command in COMMANDS:
    command.add_command(_provider_command)


@command.command("lint")
@click.argument("contract", type=_FILE)
@click.option(
    "--today",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Judge ends and exceptions as of this day (UTC).",
)
@_JSON
def lint_command(*, contract: Path, today: datetime | None, as_json: bool) -> int:
    """Say what contradicts itself in CONTRACT, and what its readers should know.

    Exit codes: 0 nothing or warnings only, 3 an error.
    """
    document = read_contract(contract)
    remarks = lint(document, today=_day(today))
    if as_json:
        rows = [
            {
                "severity": one.severity,
                "clause": one.clause,
                "message": one.message,
                "mend": one.mend,
            }
            for one in remarks
        ]
        click.echo(json.dumps({"digest": contract_digest(document), "remarks": rows}, indent=2))
    else:
        for one in remarks:
            click.echo(f"{one.severity}: {one.clause or 'document'}: {one.message} {one.mend}")
        errors = sum(one.severity is Severity.ERROR for one in remarks)
        click.echo(
            f"{errors} errors, {len(remarks) - errors} warnings. {contract_digest(document)}"
        )
    return ExitCode.USAGE if any(one.severity is Severity.ERROR for one in remarks) else 0


@command.command("diff")
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@_JSON
def diff_command(*, old: Path, new: Path, as_json: bool) -> int:
    """Say for each clause whether NEW promises more isolation than OLD, less, or neither.

    Exit codes: 0 nothing got wider, 1 something did, 2 nothing did, but of something it cannot be
    told, 3 a file is no contract, or the two are of different deployments.
    """
    before, after = read_contract(old), read_contract(new)
    if before.deployment != after.deployment:
        raise ContractError(
            f"{old.name} is of {before.deployment}, {new.name} of {after.deployment}.",
            hint="Compare two versions of one deployment's contract.",
        )
    clauses = compare(before, after)
    if as_json:
        click.echo(json.dumps({"clauses": [_row(one) for one in clauses]}, indent=2))
    else:
        for one in clauses:
            _print(one)
    directions = {one.direction for one in clauses}
    if Direction.WIDER in directions:
        return ExitCode.VIOLATED
    return ExitCode.INCONCLUSIVE if Direction.UNKNOWN in directions else ExitCode.NOT_OBSERVED


@command.command("render")
@click.argument("contract", type=_FILE)
def render_command(*, contract: Path) -> None:
    """Write the guarantee as a page of Markdown: what is promised, and what is not."""
    click.echo(render_markdown(read_contract(contract)), nl=False)


@command.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of a contract."""
    click.echo(json.dumps(contract_schema(), indent=2))


def _row(one: ClauseChange) -> dict[str, object]:
    changes = [
        {
            "what": change.what,
            "before": change.before,
            "after": change.after,
            "direction": change.direction,
        }
        for change in one.changes
    ]
    return {"clause": one.clause, "direction": one.direction, "changes": changes}


def _print(one: ClauseChange) -> None:
    click.echo(f"{one.clause or 'document':14} {one.direction}")
    for change in one.changes:
        before, after = change.before or "nothing", change.after or "nothing"
        click.echo(f"  {change.direction:9} {change.what}: {before} -> {after}")


def _day(today: datetime | None) -> date:
    return (today or datetime.now(UTC)).date()
