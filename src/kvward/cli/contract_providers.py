"""`kvward contract ask`, `compare`, `providers`: what others state in public about their caches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from kvward.cli.contract_options import AS_JSON
from kvward.contract.providers import (
    NOTICE,
    Side,
    compare_sides,
    load_provider,
    load_providers,
    open_questions,
    render_letter,
    render_markdown,
    render_text,
    side_of_provider,
)
from kvward.errors import ConfigError


def _side_from_file(path: str) -> Side:
    raise ConfigError(
        f"Files of contracts cannot be compared yet: {path}.",
        hint="Give names that `kvward contract providers` lists.",
    )


def find_side(name: str, *, from_file: Callable[[str], Side] = _side_from_file) -> Side:
    """Find what a word on the command line means: a file, or a provider's name.

    Args:
        name: What has a suffix or a folder is a path, anything else a name.
        from_file: Brings a contract's file into the form of a column.
    Raises:
        UsageError: It is neither.
    """
    path = Path(name)
    if path.suffix or len(path.parts) > 1:
        return from_file(name)
    return side_of_provider(load_provider(name))


@click.command("providers")
@AS_JSON
def providers(*, as_json: bool) -> None:
    """List the providers whose public statements are recorded."""
    known = load_providers()
    rows = [
        {
            "name": provider.name,
            "title": provider.title,
            "set_by": provider.facts.set_by.value,
            "dimensions": list(provider.facts.dimensions),
            "read": None if provider.read is None else provider.read.isoformat(),
            "unanswered": list(provider.unanswered),
            "num_open_questions": len(open_questions(provider)),
        }
        for provider in known
    ]
    if as_json:
        click.echo(json.dumps({"notice": NOTICE, "providers": rows}, indent=2))
        return
    click.echo(f"{'name':14} {'read':14} {'open':5} {'scope is set by':20} separated by")
    for provider in known:
        separated = ", ".join(provider.facts.dimensions) or "not stated"
        click.echo(
            f"{provider.name:14} {provider.read_label:14} {len(open_questions(provider)):<5} "
            f"{provider.facts.set_by:20} {separated}"
        )
    click.echo(f"\nopen: questions without a public answer. {NOTICE}")


@click.command("ask")
@click.argument("name")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the letter there instead of printing it.",
)
def ask(*, name: str, out: Path | None) -> None:
    """Write the letter that asks provider NAME what its public statements leave open.

    Markdown, with a place for your name. It says how we understand what the provider has published
    and asks only the rest.
    """
    letter = render_letter(load_provider(name))
    if out is None:
        click.echo(letter, nl=False)
        return
    try:
        out.write_text(letter, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(
            f"The letter cannot be written to {out}: {exc.strerror}.",
            hint="Give a file in a folder that exists and that you may write to.",
        ) from exc
    click.echo(f"The letter is in {out}", err=True)


@click.command("compare")
@click.argument("left")
@click.argument("right")
@AS_JSON
@click.option("--markdown", "as_markdown", is_flag=True, help="A Markdown table.")
def compare(*, left: str, right: str, as_json: bool, as_markdown: bool) -> None:
    """Show the promises of two providers side by side."""
    if as_json and as_markdown:
        raise click.UsageError("Give --json or --markdown, not both.")
    one, two = find_side(left), find_side(right)
    if as_json:
        rows = [asdict(row) for row in compare_sides(one, two)]
        value = {"notice": NOTICE, "left": one.title, "right": two.title, "rows": rows}
        click.echo(json.dumps(value, indent=2))
    elif as_markdown:
        click.echo(f"{render_markdown(one, two)}\n{NOTICE}")
    else:
        columns = shutil.get_terminal_size().columns
        click.echo(f"{render_text(one, two, columns=columns)}\n{NOTICE}")


COMMANDS = (ask, compare, providers)
"""What the group `kvward contract` takes up."""
