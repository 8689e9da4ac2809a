"""`kvward contract`: read, check and compare what a deployment promises about its cache."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import click
import msgspec

from kvward.cli.contract_options import AS_JSON, CONTRACT_FILE, TODAY
from kvward.cli.contract_providers import COMMANDS
from kvward.cli.lazy import LazyGroup
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


@click.group(
    "contract",
    cls=LazyGroup,
    lazy={
        "check": (
            "kvward.cli.contract_check",
            "Say of each clause whether audits show it.",
        ),
    },
    extras={"check": "audit"},
    path="kvward contract",
)
def command() -> None:
    """The promise: what a deployment guarantees about its cache, and what others say of theirs."""


for _provider_command in COMMANDS:
    command.add_command(_provider_command)


@command.command("lint")
@click.argument("contract", type=CONTRACT_FILE)
@TODAY
@AS_JSON
def lint_command(*, contract: Path, today: date, as_json: bool) -> int:
    """Say what contradicts itself in CONTRACT, and what its readers should know.

    Exit codes: 0 nothing or warnings only, 3 an error.
    """
    document = read_contract(contract)
    remarks = lint(document, today=today)
    if as_json:
        rows = msgspec.to_builtins(remarks)
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
@click.argument("old", type=CONTRACT_FILE)
@click.argument("new", type=CONTRACT_FILE)
@AS_JSON
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
@click.argument("contract", type=CONTRACT_FILE)
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
