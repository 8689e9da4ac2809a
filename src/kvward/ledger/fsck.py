"""Look a log over, and make anew what can be: tiles follow from entries, entries from nothing.

No key is needed to repair: a tile is right when the entries make it, and the entries are right when
they lead to the root that was signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvward.errors import LedgerError, VerificationError
from kvward.ledger.append import is_beyond, iter_files
from kvward.ledger.checkpoint import Checkpoint, open_checkpoint, parse_unverified_checkpoint
from kvward.ledger.durable import FolderLock, write_files
from kvward.ledger.entry import decode_entry
from kvward.ledger.merkle import leaf_hash
from kvward.ledger.note import NoteVerifier
from kvward.ledger.tiles import TILE_WIDTH, Edge, LogFolder, Tile, num_levels


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderReport:
    """What a look at a log's files found.

    Attributes:
        checkpoint: What was signed.
        damaged: Tiles that are missing or are not what the entries make; they can be repaired.
        lost: What cannot be repaired, in words: entries that are missing or changed.
        leftovers: Files beyond the checkpoint, of writes that a crash ended.
        repaired: Whether damaged tiles were written anew and leftovers removed.
    """

    checkpoint: Checkpoint
    damaged: tuple[str, ...]
    lost: tuple[str, ...]
    leftovers: tuple[str, ...]
    repaired: bool

    @property
    def is_clean(self) -> bool:
        """Return whether all is as it should be, now."""
        return not self.lost and (self.repaired or not (self.damaged or self.leftovers))


def check_folder(
    folder: Path, verifiers: Sequence[NoteVerifier] | None, *, repair: bool
) -> FolderReport:
    """Look over all files of a log; with `repair`, make its tiles anew.

    Nothing is repaired when entries are missing or changed: a tile may then be all that is left to
    show which.

    Args:
        verifiers: Keys of the log; None to believe the checkpoint as it is.
        repair: Needs that nobody writes the log.
    Raises:
        LedgerBusyError: It should be repaired and somebody writes it.
        LedgerError: It cannot be written.
        CheckpointSignatureError: No given key signed the checkpoint.
        VerificationError: There is no checkpoint.
    """
    if not repair:
        return _check(folder, verifiers)[0]
    with FolderLock(folder):
        report, tiles = _check(folder, verifiers)
        if report.lost or report.is_clean:
            return report
        try:
            write_files(folder, tiles)
            for name in report.leftovers:
                (folder / name).unlink(missing_ok=True)
        except OSError as exc:
            raise LedgerError(f"The log in {folder} cannot be repaired: {exc.strerror}.") from exc
    return FolderReport(
        checkpoint=report.checkpoint,
        damaged=report.damaged,
        lost=(),
        leftovers=report.leftovers,
        repaired=True,
    )


def _check(
    folder: Path, verifiers: Sequence[NoteVerifier] | None
) -> tuple[FolderReport, dict[str, bytes]]:
    log = LogFolder(folder)
    note = log.read_checkpoint()
    checkpoint = (
        parse_unverified_checkpoint(note) if verifiers is None else open_checkpoint(note, verifiers)
    )
    size = checkpoint.size
    edge, lost, damaged = Edge(), [], dict[str, bytes]()
    indexes = [0] * num_levels(size)

    def compare(tile: Tile, hashes: list[bytes]) -> None:
        try:
            is_right = log.read_hashes(tile) == hashes
        except VerificationError:
            is_right = False
        if not is_right:
            damaged[tile.path] = b"".join(hashes)

    try:
        for tile, entries in log.iter_bundles(size):
            for number, entry in enumerate(entries):
                try:
                    decode_entry(entry)
                except VerificationError as exc:
                    lost.append(f"Entry {tile.index * TILE_WIDTH + number}: {exc.message}")
            for level, hashes in edge.grow([leaf_hash(entry) for entry in entries]):
                compare(Tile(level, indexes[level], TILE_WIDTH), hashes)
                indexes[level] += 1
    except VerificationError as exc:
        lost.append(exc.message)
    else:
        for level, hashes in enumerate(edge.levels):
            if hashes:
                compare(Tile(level, indexes[level], len(hashes)), hashes)
        if edge.root() != checkpoint.root:
            lost.append("The entries do not lead to the root that was signed.")
    leftovers = sorted(tile.path for tile in iter_files(folder) if is_beyond(tile, size))
    report = FolderReport(
        checkpoint=checkpoint,
        damaged=tuple(damaged),
        lost=tuple(lost),
        leftovers=tuple(leftovers),
        repaired=False,
    )
    return report, damaged
