"""`kvward ledger record` and `kvward ledger bundle`: finished audits into a log, and out to others.

Belongs to the group of `kvward ledger`. What audits need is imported when a command is called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvward.contract import canonical_json, read_contract
from kvward.errors import BundleError, ConfigError
from kvward.ledger.checkpoint import open_checkpoint
from kvward.ledger.document import sha256_hex
from kvward.ledger.keyfile import load_log_key
from kvward.ledger.note import NoteVerifier
from kvward.ledger.tiles import LogFolder

if TYPE_CHECKING:
    from kvward.ledger.bundle.collecting import LogFiles

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_LOG = click.option(
    "--log", "log", required=True, type=_FOLDER, help="Folder of the log; see `ledger init`."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


@click.command("record")
@_LOG
@click.option(
    "--audit",
    "audits",
    required=True,
    multiple=True,
    type=_FOLDER,
    help="Folder of a finished audit; may be given again.",
)
@click.option("--key-file", type=_FILE, help="Signing key; DIR.key, beside the log, if not given.")
@click.option("--contract", type=_FILE, help="The contract of the audits, TOML or JSON.")
@_JSON
def record(
    *, log: Path, audits: tuple[Path, ...], key_file: Path | None, contract: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Enter plan and verdicts of finished audits, and sign a statement about each.

    A plan that was not logged before its audit is entered now, and `kvward verify` says so.
    """
    from kvward.cli.recording import AuditLedger

    digest = None if contract is None else sha256_hex(canonical_json(read_contract(contract)))
    ledger = AuditLedger(log, key_file=key_file, contract_digest=digest)
    for audit in audits:
        checkpoint = ledger.record(audit)
    if as_json:
        click.echo(json.dumps({"origin": checkpoint.origin, "size": checkpoint.size}))
    else:
        click.echo(f"{checkpoint.origin} has {checkpoint.size} entries.")


@click.command("bundle")
@click.argument("out", type=click.Path(path_type=Path))
@_LOG
@click.option(
    "--audit",
    "audits",
    required=True,
    multiple=True,
    type=_FOLDER,
    help="Folder of an audit that is recorded in the log; may be given again.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="VKEY",
    help="Verifier key of who signed; that of DIR.key, beside the log, if not given.",
)
@click.option("--contract", type=_FILE, help="The contract of the audits, TOML or JSON.")
@click.option("--contract-envelope", type=_FILE, help="DSSE envelope with the signed contract.")
@click.option("--since", type=_FILE, help="Older checkpoint of the log that it has to continue.")
@click.option(
    "--audit-entries-only",
    is_flag=True,
    help="Leave out entries of the log that are neither plans nor of these audits.",
)
@_JSON
def bundle(
    *, out: Path, log: Path, audits: tuple[Path, ...], keys: tuple[str, ...],
    contract: Path | None, contract_envelope: Path | None, since: Path | None,
    audit_entries_only: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the evidence of audits to OUT, a folder or a .tar, for somebody else to verify.

    It is verified before it is written; one that does not verify is not.
    """
    from kvward.cli.recomputing import recompute_audit
    from kvward.cli.recording import key_beside, read_recorded_audit
    from kvward.ledger.bundle.checking import check_bundle
    from kvward.ledger.bundle.collecting import collect_bundle
    from kvward.ledger.bundle.result import Standing
    from kvward.ledger.bundle.writing import save_bundle

    verifiers = [NoteVerifier.from_text(key) for key in keys]
    if not verifiers:
        verifiers = [load_log_key(key_beside(log)).verifier]
    files = collect_bundle(
        _read_log(log, verifiers, since),
        [read_recorded_audit(audit) for audit in audits],
        keys=verifiers,
        contract=None if contract is None else canonical_json(read_contract(contract)),
        contract_envelope=None if contract_envelope is None else _read(contract_envelope),
        all_entries=not audit_entries_only,
    )
    result = check_bundle(
        files,
        trusted=verifiers,
        known=None,
        allow_partial=audit_entries_only,
        recompute=recompute_audit,
    )
    wrong = [step.told for step in result.steps if step.standing is Standing.FAILS]
    if wrong:
        raise BundleError(f"The bundle would not verify: {wrong[0]}")
    save_bundle(files, out)
    told = [step.told for step in result.steps if step.standing is Standing.NOT_SHOWN]
    if as_json:
        click.echo(json.dumps({"bundle": str(out), "files": len(files), "not_shown": told}))
        return
    for text in told:
        click.echo(text, err=True)
    click.echo(f"{out}: {len(audits)} audits, {result.size} entries of {result.origin}.")


def _read_log(folder: Path, keys: list[NoteVerifier], since: Path | None) -> LogFiles:
    from kvward.ledger.bundle.collecting import LogFiles

    log = LogFolder(folder)
    note = log.read_checkpoint()
    checkpoint = open_checkpoint(note, keys)
    older = None
    if since is not None:
        data = _read(since)
        older = (data, open_checkpoint(data, keys))
    return LogFiles(
        note=note,
        checkpoint=checkpoint,
        entries=list(log.iter_entries(checkpoint.size)),
        older=older,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.") from exc
