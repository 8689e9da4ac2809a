"""`kvward ledger`: begin a log, verify it, prove what is in it, look its files over."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvward.cli.evidence import bundle, record
from kvward.errors import ConfigError, LedgerError
from kvward.ledger.append import begin_log
from kvward.ledger.checkpoint import (
    Checkpoint,
    open_checkpoint,
    parse_checkpoint,
    parse_unverified_checkpoint,
)
from kvward.ledger.fsck import check_folder
from kvward.ledger.keyfile import create_log_key
from kvward.ledger.note import NoteVerifier, parse_unverified_note
from kvward.ledger.proof import (
    InclusionProof,
    encode_proof,
    parse_unverified_proof,
    prove_consistency,
    prove_inclusion,
    verify_consistency_proof,
    verify_inclusion_proof,
)
from kvward.ledger.tiles import LogFolder
from kvward.ledger.verify import verify_log
from kvward.terms import ExitCode

_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_KEY = click.option(
    "--key",
    "keys",
    required=True,
    multiple=True,
    metavar="VKEY",
    help="Verifier key, as `kvward ledger init` prints it; several may be given.",
)
_MAYBE_KEY = click.option(
    "--key", "keys", multiple=True, metavar="VKEY", help="Check the checkpoint with this key, too."
)
_KNOWN = click.option(
    "--known",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A checkpoint of this log that was kept from before.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


@click.group("ledger")
def command() -> None:
    """The log of evidence: begin, verify, prove, repair, export."""


@command.command("init")
@_FOLDER
@click.option("--origin", required=True, metavar="NAME", help="For example DEPLOYMENT/INSTANCE.")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    help="Where the signing key goes; DIR.key, beside the folder, if not given.",
)
@_JSON
def init(*, folder: Path, origin: str, key_file: Path | None, as_json: bool) -> None:
    """Begin a log with a fresh key, and print the key that verifies it."""
    path = key_file or folder.with_name(f"{folder.name}.key")
    signer = create_log_key(path, origin=origin)
    try:
        begin_log(folder, signer)
    except LedgerError:
        path.unlink()  # nothing was signed with it
        raise
    vkey = signer.verifier.to_text()
    if as_json:
        click.echo(json.dumps({"origin": origin, "key_file": str(path), "verifier_key": vkey}))
        return
    click.echo(vkey)
    click.echo(
        f"The signing key is in {path}. Give the line above to whoever is to verify.", err=True
    )


@command.command("verify")
@_FOLDER
@_KEY
@_KNOWN
@_JSON
def verify(*, folder: Path, keys: Sequence[str], known: Path | None, as_json: bool) -> None:
    """Check every entry and every hash, and that nothing was rolled back or rewritten."""
    verifiers = _verifiers(keys)
    found = verify_log(folder, verifiers, _read_known(known, verifiers))
    if as_json:
        click.echo(
            json.dumps(
                _as_json(found.checkpoint)
                | {
                    "known_size": None if found.known is None else found.known.size,
                    "entries": dict(found.num_entries),
                    "dropped": found.num_dropped,
                    "plans_without_verdict": found.plans_without_verdict,
                    "verdicts_without_plan": found.verdicts_without_plan,
                },
                indent=2,
            )
        )
        return
    click.echo(f"The log {found.checkpoint.origin} verifies: {found.checkpoint.size} entries.")
    for kind, count in found.num_entries.items():
        click.echo(f"  {kind:12} {count}")
    if found.num_dropped:
        click.echo(f"The log says that {found.num_dropped} entries are not in it.")
    for digest in found.plans_without_verdict:
        click.echo(f"Planned and never answered: {digest}")
    for digest in found.verdicts_without_plan:
        click.echo(f"Answered and not planned before: {digest}")
    if found.known is None:
        click.echo("It was held against no earlier checkpoint (--known).", err=True)


@command.command("prove")
@_FOLDER
@click.argument("index", type=int, required=False)
@click.option("--since", type=int, metavar="SIZE", help="Prove that the log continues this size.")
@_MAYBE_KEY
def prove(*, folder: Path, index: int | None, since: int | None, keys: Sequence[str]) -> None:
    """Print a proof that entry INDEX is in the log, or that the log continues --since."""
    if (index is None) == (since is None):
        raise click.UsageError("Say either INDEX or --since SIZE.")
    verifiers = _verifiers(keys) or None
    if index is not None:
        click.echo(encode_proof(prove_inclusion(folder, index, verifiers=verifiers)))
    elif since is not None:
        click.echo(encode_proof(prove_consistency(folder, since, verifiers=verifiers)))


@command.command("check-proof")
@click.argument("file", type=click.Path(path_type=Path))
@_KEY
@_KNOWN
@_JSON
def check_proof(*, file: Path, keys: Sequence[str], known: Path | None, as_json: bool) -> None:
    """Check a proof that `kvward ledger prove` printed. Needs nothing but the key."""
    verifiers = _verifiers(keys)
    proof = parse_unverified_proof(_read(file))
    if isinstance(proof, InclusionProof):
        _, checkpoint = verify_inclusion_proof(proof, verifiers)
        said: dict[str, Any] = {"index": proof.index, "entry": json.loads(proof.entry)}
        text = f"Entry {proof.index} is in the log {checkpoint.origin}: {proof.entry}"
    else:
        earlier = _read_known(known, verifiers)
        checkpoint = verify_consistency_proof(proof, verifiers, earlier)
        said = {"old_size": proof.old_size, "old_root": proof.old_root}
        text = (
            f"The log {checkpoint.origin} of {checkpoint.size} entries begins with the "
            f"{proof.old_size} whose root is {proof.old_root}."
        )
    click.echo(json.dumps(_as_json(checkpoint) | said) if as_json else text)


@command.command("head")
@_FOLDER
@_JSON
def head(*, folder: Path, as_json: bool) -> None:
    """Print the signed checkpoint, to be kept elsewhere. Verifies nothing."""
    note = LogFolder(folder).read_checkpoint()
    text, signatures = parse_unverified_note(note)
    if as_json:
        signed_by = [f"{name}+{key_id.hex()}" for name, key_id, _ in signatures]
        click.echo(json.dumps(_as_json(parse_checkpoint(text)) | {"unverified_by": signed_by}))
    else:
        click.echo(note, nl=False)


@command.command("fsck")
@_FOLDER
@_MAYBE_KEY
@click.option("--repair", is_flag=True, help="Make tiles anew from the entries.")
@_JSON
def fsck(*, folder: Path, keys: Sequence[str], repair: bool, as_json: bool) -> int:
    """Look over all files of a log, and repair what follows from its entries."""
    report = check_folder(folder, _verifiers(keys) or None, repair=repair)
    if as_json:
        click.echo(
            json.dumps(
                _as_json(report.checkpoint)
                | {
                    "damaged": report.damaged,
                    "lost": report.lost,
                    "leftovers": report.leftovers,
                    "repaired": report.repaired,
                },
                indent=2,
            )
        )
    else:
        mended = ", and was mended" if report.repaired else ""
        for name in report.damaged:
            click.echo(f"{name} is damaged{mended}.")
        for name in report.leftovers:
            click.echo(f"{name} lies beyond the checkpoint{mended}.")
        for words in report.lost:
            click.echo(words)
        if report.is_clean:
            click.echo(f"All files of {report.checkpoint.size} entries are as they should be.")
    return 0 if report.is_clean else ExitCode.EVIDENCE


@command.command("export")
@_FOLDER
@_MAYBE_KEY
def export(*, folder: Path, keys: Sequence[str]) -> None:
    """Print all entries as JSON Lines, each in its canonical spelling; with --key, verify first."""
    if keys:
        verify_log(folder, _verifiers(keys), None)
    log = LogFolder(folder)
    for entry in log.iter_entries(parse_unverified_checkpoint(log.read_checkpoint()).size):
        sys.stdout.buffer.write(entry + b"\n")


command.add_command(record)
command.add_command(bundle)


def _verifiers(keys: Sequence[str]) -> list[NoteVerifier]:
    return [NoteVerifier.from_text(key) for key in keys]


def _read_known(path: Path | None, verifiers: Sequence[NoteVerifier]) -> Checkpoint | None:
    return None if path is None else open_checkpoint(_read(path), verifiers)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"The file {path} cannot be read: {exc.strerror}.") from exc


def _as_json(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.hex(),
    }
