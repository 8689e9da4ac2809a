"""Putting a bundle together from a log and audits. It needs no key: all of it is signed already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from kvward.errors import UsageError
from kvward.ledger.bundle.log_part import ConsistencyFile, EntryLine
from kvward.ledger.bundle.manifest import FIXED_NAMES, Role, audit_file, audit_id_of
from kvward.ledger.bundle.signatures import render_keys
from kvward.ledger.bundle.writing import with_manifest
from kvward.ledger.checkpoint import Checkpoint
from kvward.ledger.document import sha256_hex, to_canonical_json
from kvward.ledger.entry import ContractPublished, PlanPublished, VerdictReached, decode_entry
from kvward.ledger.merkle import (
    consistency_ranges,
    inclusion_ranges,
    leaf_hash,
    node_hash,
    tree_root,
)
from kvward.ledger.note import NoteVerifier

MAX_ALL_ENTRIES = 20_000
"""Logs up to this size are bundled whole, unless less is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFiles:
    """The files of one finished audit."""

    plan: bytes
    history: bytes
    report: bytes
    statement: bytes

    @property
    def plan_digest(self) -> str:
        """Return the digest of the plan."""
        return sha256_hex(self.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFiles:
    """A log that was read.

    Attributes:
        note: The checkpoint, signed.
        checkpoint: What it says. [verified]
        entries: Of the log, all of them.
        older: An earlier checkpoint, signed, and what it says; None where nobody asked for it.
    """

    note: bytes
    checkpoint: Checkpoint
    entries: Sequence[bytes]
    older: tuple[bytes, Checkpoint] | None


def collect_bundle(
    log: LogFiles,
    audits: Sequence[AuditFiles],
    *,
    keys: Sequence[NoteVerifier],
    contract: bytes | None,
    contract_envelope: bytes | None,
    all_entries: bool,
) -> dict[str, bytes]:
    """Return the files of a bundle, with their manifest.

    Args:
        keys: All that signed something in it.
        all_entries: Whether to put in every entry of the log; else those about plans, contracts,
            and these audits, and then whoever verifies is told that others are missing.
    Raises:
        UsageError: There is no audit, or the log is too large to be put in whole.
    """
    size = log.checkpoint.size
    if not audits:
        raise UsageError("A bundle holds one audit at least.")
    if all_entries and size > MAX_ALL_ENTRIES:
        raise UsageError(
            f"The log has {size} entries, more than the {MAX_ALL_ENTRIES} of a bundle.",
            hint="Leave other entries out with --audit-entries-only.",
        )
    files = {
        FIXED_NAMES[Role.CHECKPOINT]: log.note,
        FIXED_NAMES[Role.ENTRIES]: b"".join(
            line + b"\n" for line in _iter_lines(log, audits, all_entries=all_entries)
        ),
        FIXED_NAMES[Role.KEYS]: render_keys(keys),
    }
    optional = {Role.CONTRACT: contract, Role.CONTRACT_ENVELOPE: contract_envelope}
    if log.older is not None:
        optional[Role.OLDER_CHECKPOINT] = log.older[0]
        optional[Role.CONSISTENCY] = _consistency(log, log.older[1].size)
    files |= {FIXED_NAMES[role]: data for role, data in optional.items() if data is not None}
    for audit in audits:
        audit_id = audit_id_of(audit.plan_digest)
        files |= {
            audit_file(Role.PLAN, audit_id): audit.plan,
            audit_file(Role.HISTORY, audit_id): audit.history,
            audit_file(Role.REPORT, audit_id): audit.report,
            audit_file(Role.STATEMENT, audit_id): audit.statement,
        }
    return with_manifest(files)


def _iter_lines(
    log: LogFiles, audits: Sequence[AuditFiles], *, all_entries: bool
) -> Iterator[bytes]:
    digests = {audit.plan_digest for audit in audits}
    size = log.checkpoint.size
    roots = _Roots([leaf_hash(entry) for entry in log.entries[:size]])
    for index, entry in enumerate(log.entries[:size]):
        if all_entries or _is_about(entry, digests):
            proof = tuple(
                roots.of(start, end).hex() for start, end in inclusion_ranges(index, size)
            )
            yield to_canonical_json(EntryLine(entry=entry.decode(), index=index, proof=proof))


def _is_about(data: bytes, plan_digests: set[str]) -> bool:
    match decode_entry(data):
        case PlanPublished() | ContractPublished():
            return True
        case VerdictReached(plan_digest=digest):
            return digest in plan_digests
        case _:
            return False


def _consistency(log: LogFiles, old_size: int) -> bytes:
    roots = _Roots([leaf_hash(entry) for entry in log.entries])
    ranges = consistency_ranges(old_size, log.checkpoint.size)
    return to_canonical_json(
        ConsistencyFile(proof=tuple(roots.of(start, end).hex() for start, end in ranges))
    )


class _Roots:
    """Roots of ranges of leaves, each subtree worked out once."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._leaves = leaves
        self.of = cache(self._of)

    def _of(self, start: int, end: int) -> bytes:
        width = end - start
        if width < 2:
            return tree_root(self._leaves[start:end])
        middle = start + (1 << (width - 1).bit_length() - 1)
        return node_hash(self.of(start, middle), self.of(middle, end))
