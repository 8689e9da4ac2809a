"""An audit and a log: the plan goes in before the first request, the verdicts at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from kvward.cli.auditing import HISTORY_NAME, REPORT_NAME
from kvward.cli.recomputing import recompute_audit
from kvward.errors import BundleError, ConfigError
from kvward.ledger.append import LogAppender
from kvward.ledger.audit_entry import plan_entry, verdict_entries
from kvward.ledger.bundle.collecting import AuditFiles
from kvward.ledger.checkpoint import Checkpoint, parse_unverified_checkpoint
from kvward.ledger.document import sha256_hex
from kvward.ledger.dsse import sign_envelope
from kvward.ledger.entry import Entry, PlanPublished, VerdictReached, decode_entry, encode_entry
from kvward.ledger.keyfile import load_log_key
from kvward.ledger.note import NoteSigner
from kvward.ledger.statement import PAYLOAD_TYPE, AuditFacts, make_statement
from kvward.ledger.tiles import LogFolder

STATEMENT_NAME = "statement.dsse.json"


class AuditLedger:
    """A log that an audit is written down in. Nothing is held open between two entries.

    Args:
        folder: Of a log that was begun.
        key_file: Of its signing key; None for the one beside the folder.
        contract_digest: Of the contract that audits are made for; None without one.
    Raises:
        KeyUnavailableError: The key cannot be used.
    """

    def __init__(self, folder: Path, *, key_file: Path | None, contract_digest: str | None) -> None:
        self._folder = folder
        self._signer = load_log_key(key_file or key_beside(folder))
        self._contract_digest = contract_digest

    def publish_plan(self, plan: bytes, *, seed_was_given: bool) -> Checkpoint:
        """Write down that an audit is going to be made; returns when it is durable.

        Args:
            plan: Its canonical JSON.
        Raises:
            LedgerError: It cannot be written.
        """
        return self._append(
            [
                plan_entry(
                    sha256_hex(plan),
                    at_unix_ms=_now_unix_ms(),
                    contract_digest=self._contract_digest,
                    seed_was_given=seed_was_given,
                )
            ]
        )

    def record(self, audit: Path) -> Checkpoint:
        """Write down what a finished audit decided, and sign a statement about it.

        A plan that is not in the log yet is written first; whoever verifies is told that it came
        late. Doing it twice adds nothing.

        Args:
            audit: Folder with history and report; takes the statement.
        Raises:
            BundleError: The report is not what the history gives.
            ConfigError: The folder cannot be read, or the statement not be written.
            LedgerError: The log cannot be written.
        """
        history, report = read_audit(audit)
        found = recompute_audit(history, report)
        if found.differences:
            raise BundleError(
                f"The report is not what its history gives: {found.differences[0]}.",
                hint="Take report and history as one audit wrote them, with this version.",
            )
        logged = read_entries(self._folder)
        published = next(
            (
                entry
                for entry in logged
                if isinstance(entry, PlanPublished) and entry.plan_digest == found.plan_digest
            ),
            None,
        )
        facts = AuditFacts(
            report_digest=sha256_hex(report),
            history_digest=sha256_hex(history),
            plan_digest=found.plan_digest,
            target_digest=found.target_digest,
            contract_digest=self._contract_digest
            if published is None
            else published.contract_digest,
            tool_version=found.tool_version,
            cells=found.cells,
        )
        if published is None:
            self.publish_plan(plan_of(history), seed_was_given=False)
        statement = sign_envelope(make_statement(facts), PAYLOAD_TYPE, signers=[self._signer])
        _write(audit / STATEMENT_NAME, statement)
        known = {_timeless(entry) for entry in logged if isinstance(entry, VerdictReached)}
        now = _now_unix_ms()
        return self._append(
            [
                entry
                for entry in verdict_entries(facts, at_unix_ms=now)
                if _timeless(entry) not in known
            ]
        )

    @property
    def signer(self) -> NoteSigner:
        """Return who signs."""
        return self._signer

    def _append(self, entries: Sequence[Entry]) -> Checkpoint:
        with closing(LogAppender(self._folder, self._signer, known=None)) as log:
            if not entries:
                return log.checkpoint
            return log.append([encode_entry(entry) for entry in entries])


def key_beside(folder: Path) -> Path:
    """Return where a log's signing key lies if nobody said otherwise."""
    return folder.with_name(f"{folder.name}.key")


def read_entries(folder: Path) -> list[Entry]:
    """Return the entries of a log. [untrusted]"""
    log = LogFolder(folder)
    size = parse_unverified_checkpoint(log.read_checkpoint()).size
    return [decode_entry(data) for data in log.iter_entries(size)]


def read_audit(folder: Path) -> tuple[bytes, bytes]:
    """Return history and report of a finished audit.

    Raises:
        ConfigError: One of them cannot be read.
    """
    return _read(folder / HISTORY_NAME), _read(folder / REPORT_NAME)


def read_recorded_audit(folder: Path) -> AuditFiles:
    """Return the files of an audit that was recorded in a log.

    Raises:
        ConfigError: One of them cannot be read.
    """
    history, report = read_audit(folder)
    return AuditFiles(
        plan=plan_of(history),
        history=history,
        report=report,
        statement=_read(folder / STATEMENT_NAME),
    )


def plan_of(history: bytes) -> bytes:
    """Return the plan that heads a history."""
    return history.partition(b"\n")[0]


def _timeless(entry: VerdictReached) -> VerdictReached:
    return msgspec.structs.replace(entry, at_unix_ms=0)


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{path} cannot be read: {exc.strerror}.",
            hint="A finished audit is written down with: kvward ledger record",
        ) from exc


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}.") from exc
