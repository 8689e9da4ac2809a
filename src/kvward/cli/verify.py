"""`kvward verify BUNDLE`: check evidence of audits offline, and work every verdict out again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from kvward.audit.report.plain import plain
from kvward.cli.recomputing import recompute_audit
from kvward.errors import ConfigError
from kvward.ledger.bundle.checking import check_bundle
from kvward.ledger.bundle.reading import load_bundle
from kvward.ledger.bundle.result import AuditRow, Standing, Verification
from kvward.ledger.entry import PPB
from kvward.ledger.note import MAX_NOTE_BYTES, NoteVerifier
from kvward.ledger.statement import CellVerdict
from kvward.terms import ExitCode, merge_outcomes

FORMAT = "kvward verification 1"
LIMITS = (
    "That the history came from the stack it names: recomputing proves arithmetic.",
    "That the stack has stayed as it was when it was audited.",
    "Anything beyond the bounds, the load and the cells of each plan.",
)
_ENDINGS = {
    Standing.HOLDS: "It verifies.",
    Standing.NOT_SHOWN: "Nothing in it is wrong, and something is not shown: see above.",
    Standing.FAILS: "It does not verify.",
}
_MAX_KEY_FILE_BYTES = 1 << 16


@click.command("verify")
@click.argument("bundle", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="NAME+ID+BASE64",
    help="Whom to believe: a verifier key, from its owner and not from the bundle; may be given "
    "again.",
)
@click.option(
    "--key-file",
    "key_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a verifier key on each line.",
)
@click.option(
    "--known",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A signed checkpoint of the same log that you kept: the log has to continue it.",
)
@click.option(
    "--partial", is_flag=True, help="Accept that some of the log's entries are not in the bundle."
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def command(
    *,
    bundle: Path,
    keys: tuple[str, ...],
    key_files: tuple[Path, ...],
    known: Path | None,
    partial: bool,
    as_json: bool,
) -> ExitCode:
    """Verify the evidence of audits in BUNDLE, a folder or a .tar, without any network.

    Exits with 0 when all of it holds, 2 when nothing is wrong but something is not shown, such as
    whose signature it is without --key, and 4 when it does not verify.
    """
    trusted = [NoteVerifier.from_text(text.strip()) for text in keys]
    trusted += [key for path in key_files for key in _read_keys(path)]
    result = check_bundle(
        load_bundle(bundle),
        trusted=trusted,
        known=None if known is None else _read(known, MAX_NOTE_BYTES),
        allow_partial=partial,
        recompute=recompute_audit,
    )
    click.echo(json.dumps(to_value(result), indent=1) if as_json else "\n".join(iter_lines(result)))
    return result.exit_code


def to_value(result: Verification) -> dict[str, object]:
    """Return what came of it, for JSON."""
    return {
        "format": FORMAT,
        "standing": result.standing.value,
        "log": {"origin": result.origin, "size": result.size},
        "steps": [
            {"about": step.about, "standing": step.standing.value, "told": plain(step.told)}
            for step in result.steps
        ],
        "audits": [
            {
                "id": row.audit_id,
                "plan_digest": row.plan_digest,
                "cells": [_cell_value(cell) for cell in row.cells],
            }
            for row in result.audits
        ],
        "plans_without_result": result.unanswered,
        "plans_in_other_bundles": result.elsewhere,
        "not_shown_by_any_bundle": list(LIMITS),
    }


def iter_lines(result: Verification) -> Iterator[str]:
    """Yield what came of it, for people."""
    if result.origin is not None:
        yield f"Log {plain(result.origin)}, {result.size} entries"
    for step in result.steps:
        yield f"  {step.standing.value:9}  {step.about}: {plain(step.told)}"
    for row in result.audits:
        yield ""
        yield from _iter_audit(row)
    yield ""
    yield from _iter_digests("Plans in the log without any result", result.unanswered)
    yield from _iter_digests("Plans in the log with results elsewhere", result.elsewhere)
    yield "What no bundle can show:"
    yield from (f"  {text}" for text in LIMITS)
    yield ""
    yield _ENDINGS[result.standing]


def _iter_audit(row: AuditRow) -> Iterator[str]:
    outcome = merge_outcomes([cell.outcome for cell in row.cells])
    yield f"Audit {row.audit_id}: {outcome}"
    for cell in row.cells:
        bound = "" if cell.bound_ppb is None else f"bound ≤ {cell.bound_ppb / PPB:.3g}"
        yield f"  {cell.name:16} {cell.outcome.value:13} {bound}".rstrip()


def _iter_digests(heading: str, digests: Sequence[str]) -> Iterator[str]:
    yield f"{heading}: {len(digests)}"
    yield from (f"  {digest}" for digest in digests)


def _cell_value(cell: CellVerdict) -> dict[str, object]:
    return {
        "channel": cell.channel,
        "scope": cell.scope,
        "tier": cell.tier,
        "outcome": cell.outcome,
        "bound_ppb": cell.bound_ppb,
    }


def _read_keys(path: Path) -> list[NoteVerifier]:
    try:
        text = _read(path, _MAX_KEY_FILE_BYTES).decode()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path} is not a file of verifier keys.") from exc
    keys = [NoteVerifier.from_text(line.strip()) for line in text.splitlines() if line.strip()]
    if not keys:
        raise ConfigError(f"{path} holds no verifier key.")
    return keys


def _read(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.") from exc
    if len(data) > most:
        raise ConfigError(f"{path} is larger than it may be.")
    return data
