"""Verification of a log: everything is read, everything is computed anew.

What it needs is the folder and a public key; to find that a log was rolled back or rewritten, also
a checkpoint that somebody kept from before.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvward.errors import ForkError, VerificationError
from kvward.ledger.checkpoint import Checkpoint, open_checkpoint
from kvward.ledger.entry import (
    EntriesDropped,
    Entry,
    PlanPublished,
    VerdictReached,
    decode_entry,
    kind_of,
)
from kvward.ledger.note import NoteVerifier
from kvward.ledger.tiles import (
    TILE_WIDTH,
    Edge,
    LogFolder,
    Tile,
    num_levels,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLog:
    """What a log says, after it has verified.

    Attributes:
        checkpoint: The one in its folder.
        known: The earlier one that it was held against; None when nobody gave one, and then
            nothing shows that the log was not rolled back to an earlier state of its own.
        num_entries: By kind.
        num_dropped: Entries that the log itself says are not in it.
        plans_without_verdict: Digests of plans that were published and never answered.
        verdicts_without_plan: Digests of plans that have a verdict and were not published before.
    """

    checkpoint: Checkpoint
    known: Checkpoint | None
    num_entries: Mapping[str, int]
    num_dropped: int
    plans_without_verdict: tuple[str, ...]
    verdicts_without_plan: tuple[str, ...]


def verify_log(
    folder: Path, verifiers: Sequence[NoteVerifier], known: Checkpoint | None
) -> VerifiedLog:
    """Check a log from its first entry to its checkpoint.

    It shows that the holder of the key signed exactly these entries in this order. It does not
    show that they are true, or that nothing was left out before it was written.

    Args:
        folder: Of the log. [untrusted]
        verifiers: Keys that are believed.
        known: A checkpoint of this log from before, kept by somebody else. [verified]
    Raises:
        CheckpointSignatureError: No given key signed the checkpoint.
        VerificationError: Something is missing, damaged or changed.
        ForkError: The log and the known checkpoint cannot both be true: it was rolled back, or
            written anew.
    Cost:
        Streams: a bundle of entries at a time. What it remembers are plans and kinds.
    """
    log = LogFolder(folder)
    # (1) The checkpoint is signed by a known key of its origin.
    checkpoint = open_checkpoint(log.read_checkpoint(), verifiers)
    # (2) It is not older than the known one, and of the same log.
    if known is not None:
        _check_order(checkpoint, known)
    walk = _Walk(log, checkpoint.size, None if known is None else known.size)
    for tile, entries in log.iter_bundles(checkpoint.size):
        walk.take(tile, entries)
    walk.check_edge()
    # (6) The root is the checkpoint's.
    if walk.edge.root() != checkpoint.root:
        raise VerificationError("The entries do not lead to the root that was signed.")
    # (7) The known checkpoint's root is that of the first entries.
    if known is not None and walk.known_root != known.root:
        raise ForkError(
            f"The first {known.size} entries of {known.origin} are not those of the known "
            "checkpoint: history was written anew.",
            hint="Keep both checkpoints and a copy of the log: together they prove it.",
        )
    return walk.result(checkpoint, known)


def _check_order(checkpoint: Checkpoint, known: Checkpoint) -> None:
    if checkpoint.origin != known.origin:
        raise VerificationError(
            f"The known checkpoint is of {known.origin}, the log is {checkpoint.origin}."
        )
    if checkpoint.size < known.size:
        raise ForkError(
            f"The log has {checkpoint.size} entries, the known checkpoint {known.size}: it was "
            "rolled back.",
            hint="Look for the newer state of the log before anything is added to this one.",
        )


class _Walk:
    """What has been seen of a log, from its first entry on."""

    def __init__(self, log: LogFolder, size: int, known_size: int | None) -> None:
        self.edge = Edge()
        self.known_root: bytes | None = None
        self._log = log
        self._size = size
        self._known_size = known_size
        self._next = [0] * num_levels(size)
        self._kinds: Counter[str] = Counter()
        self._dropped = 0
        self._open_plans: dict[str, None] = {}
        self._published: set[str] = set()
        self._unplanned: dict[str, None] = {}
        if known_size == 0:
            self.known_root = self.edge.root()

    def take(self, tile: Tile, entries: Sequence[bytes]) -> None:
        # (3) Every entry is one, in its one spelling.
        for number, data in enumerate(entries):
            try:
                self._note(decode_entry(data))
            except VerificationError as exc:
                place = tile.index * TILE_WIDTH + number
                raise VerificationError(f"Entry {place}: {exc.message}", hint=exc.hint) from None
        sha256 = hashlib.sha256
        leaves = [sha256(b"\x00" + data).digest() for data in entries]
        first = tile.index * TILE_WIDTH
        if self._known_size is not None and first < self._known_size <= first + len(leaves):
            self.known_root = self.edge.root(leaves[: self._known_size - first])
        # (4) Every whole tile is what is computed from the level below.
        for level, hashes in self.edge.grow(leaves):
            self._check_tile(Tile(level, self._next[level], TILE_WIDTH), hashes)
            self._next[level] += 1

    def check_edge(self) -> None:
        # (5) So is every tile at the right edge.
        for level, hashes in enumerate(self.edge.levels):
            if hashes:
                self._check_tile(Tile(level, self._next[level], len(hashes)), hashes)

    def result(self, checkpoint: Checkpoint, known: Checkpoint | None) -> VerifiedLog:
        return VerifiedLog(
            checkpoint=checkpoint,
            known=known,
            num_entries=dict(sorted(self._kinds.items())),
            num_dropped=self._dropped,
            plans_without_verdict=tuple(self._open_plans),
            verdicts_without_plan=tuple(self._unplanned),
        )

    def _check_tile(self, tile: Tile, hashes: Sequence[bytes]) -> None:
        if self._log.read_hashes(tile) != hashes:
            raise VerificationError(
                f"The tile {tile.path} is not what the entries make of it.",
                hint="If the entries verify, it is made anew by: kvward ledger fsck DIR --repair",
            )

    def _note(self, entry: Entry) -> None:
        self._kinds[kind_of(entry)] += 1
        match entry:
            case EntriesDropped():
                self._dropped += entry.count
            case PlanPublished():
                self._published.add(entry.plan_digest)
                self._open_plans[entry.plan_digest] = None
            case VerdictReached():
                self._open_plans.pop(entry.plan_digest, None)
                if entry.plan_digest not in self._published:
                    self._unplanned[entry.plan_digest] = None
            case _:
                pass
