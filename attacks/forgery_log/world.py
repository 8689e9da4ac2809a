"""Genuine logs, and what a forger has beside them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvward.ledger.append import LogAppender, begin_log
from kvward.ledger.checkpoint import Checkpoint, open_checkpoint
from kvward.ledger.entry import EventsCounted, encode_entry
from kvward.ledger.merkle import leaf_hash
from kvward.ledger.names import CountedEvent
from kvward.ledger.note import NoteSigner
from kvward.ledger.tiles import Edge, LogFolder, Tile, iter_tiles, pack_bundle

Files = dict[str, bytes]
ORIGIN = "deployment/one"


def entry_of(number: int) -> bytes:
    """Return an entry; another one for each number."""
    return encode_entry(
        EventsCounted(
            at_unix_ms=number,
            name=CountedEvent.STORE_REFUSED,
            reason=None,
            count=number + 1,
            window_ms=60_000,
        )
    )


def lay_out(entries: Sequence[bytes], note: bytes) -> Files:
    """Return all files of a log with these entries and this checkpoint, tiles as they should be."""
    files, edge = {"checkpoint": note}, Edge()
    for tile in iter_tiles(None, len(entries)):
        first = tile.index * 256
        bundle = entries[first : first + tile.width]
        files[tile.path] = pack_bundle(bundle)
        for level, hashes in edge.grow([leaf_hash(entry) for entry in bundle]):
            index = (first + 256 >> 8 * (level + 1)) - 1
            files[Tile(level, index, 256).path] = b"".join(hashes)
    for level, hashes in enumerate(edge.levels):
        if hashes:
            index = len(entries) >> 8 * (level + 1)
            files[Tile(level, index, len(hashes)).path] = b"".join(hashes)
    return files


def root_of(entries: Sequence[bytes]) -> bytes:
    """Return the root over entries."""
    edge = Edge()
    for first in range(0, len(entries), 256):
        list(edge.grow([leaf_hash(entry) for entry in entries[first : first + 256]]))
    return edge.root()


class Genuine:
    """A log in a folder, and what its past has left in other hands."""

    def __init__(
        self, folder: Path, signer: NoteSigner, groups: Sequence[int], *, start: int
    ) -> None:
        self.folder, self.signer = folder, signer
        begin_log(folder, signer)
        appender = LogAppender(folder, signer, known=None)
        self.notes = [(folder / "checkpoint").read_bytes()]
        for group in groups:
            first = start + appender.checkpoint.size
            appender.append([entry_of(first + number) for number in range(group)])
            self.notes.append((folder / "checkpoint").read_bytes())
        appender.close()
        self.entries = list(LogFolder(folder).iter_entries(appender.checkpoint.size))
        self.size = len(self.entries)
        self.known = self.opened(self.notes[-2])
        self.files = lay_out(self.entries, self.notes[-1])
        # Partial tiles of earlier sizes are there as well.
        self.on_disk = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        assert self.files.items() <= self.on_disk.items()

    def opened(self, note: bytes) -> Checkpoint:
        """Return what a checkpoint of this log says."""
        return open_checkpoint(note, [self.signer.verifier])


@dataclass(frozen=True, kw_only=True)
class World:
    """What the forger has.

    Attributes:
        rng: Chooses.
        genuine: The log that is forged.
        others: Logs of the same key owner under other origins.
        forger: A key of the forger's own, named like the log's.
    """

    rng: random.Random
    genuine: Genuine
    others: Sequence[Genuine]
    forger: NoteSigner

    def place(self) -> int:
        """Return the index of an entry."""
        return self.rng.randrange(self.genuine.size)

    def note(self) -> bytes:
        """Return the checkpoint as it is."""
        return self.genuine.notes[-1]
