"""The log as it grows on disk: opened and checked, appended to in groups, cut after a crash.

A group becomes durable in this order: entries, then tiles, then the checkpoint by a rename. What
lies beyond the checkpoint was acknowledged to nobody; the next opening cuts it off. It is not taken
up again, though it may be whole, unless a checkpoint over it was signed already: what is not signed
could be anybody's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvward.errors import ForkError, LedgerError, UsageError, VerificationError
from kvward.ledger.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from kvward.ledger.durable import UNFINISHED, FolderLock, publish_file, write_files
from kvward.ledger.entry import MAX_ENTRY_BYTES, KeyRotated, encode_entry
from kvward.ledger.merkle import EMPTY_ROOT, HASH_BYTES, leaf_hash
from kvward.ledger.note import NoteSigner
from kvward.ledger.tiles import (
    CHECKPOINT,
    TILE_WIDTH,
    Edge,
    LogFolder,
    Tile,
    TileHashes,
    iter_tiles,
    num_levels,
    pack_bundle,
    parse_path,
)


def begin_log(folder: Path, signer: NoteSigner) -> Checkpoint:
    """Make a log without entries. Its origin is the signer's name.

    Args:
        folder: Made if it does not exist.
    Raises:
        LedgerError: There is a log already, or the folder cannot be written.
    """
    checkpoint = Checkpoint(signer.name, 0, EMPTY_ROOT)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FolderLock(folder):
            if (folder / CHECKPOINT).exists() or (folder / "tile").exists():
                raise LedgerError(
                    f"There is a log in {folder} already; it is never overwritten.",
                    hint="Name another folder, or keep using this one.",
                )
            publish_file(folder / CHECKPOINT, sign_checkpoint(checkpoint, signer))
    except OSError as exc:
        raise LedgerError(f"No log can be made in {folder}: {exc.strerror}.") from exc
    return checkpoint


class LogAppender:
    """A log that this process alone may change.

    Args:
        folder: Of a log that was begun.
        signer: Of its checkpoints.
        known: A checkpoint kept elsewhere, which the log may not be older than; None to believe
            the folder.
    Raises:
        LedgerBusyError: Another process writes it.
        CheckpointSignatureError: The log is signed by another key.
        VerificationError: What is on disk does not match its checkpoint.
        ForkError: The log is older than the known checkpoint, or another one.
    Cost:
        Looks at every file's length, and reads the right edge only: `ledger.verify` reads all.
    """

    def __init__(self, folder: Path, signer: NoteSigner, *, known: Checkpoint | None) -> None:
        self._folder, self._signer = folder, signer
        self._lock = FolderLock(folder)
        try:
            self._open(known)
        except OSError as exc:
            self._lock.release()
            raise LedgerError(f"The log in {folder} cannot be read: {exc.strerror}.") from exc
        except BaseException:
            self._lock.release()
            raise

    def _open(self, known: Checkpoint | None) -> None:
        log = LogFolder(self._folder)
        published = open_checkpoint(log.read_checkpoint(), [self._signer.verifier])
        self.checkpoint = published
        self._take_up_signed()
        size = self.checkpoint.size
        _check_files(self._folder, size)
        hashes = TileHashes(log, size)
        self._edge = Edge(hashes.edge())
        if self._edge.root() != self.checkpoint.root:
            raise VerificationError(
                "The tiles of the log do not lead to the root of its checkpoint.",
                hint="Look with: kvward ledger fsck DIR --key VKEY",
            )
        self._bundle = self._read_last_bundle(log, hashes)
        for earlier in (published, known):
            if earlier is not None:
                self._check_known(earlier, hashes)
        self.num_cut = self._cut(log)
        if self._signed is not None:
            publish_file(self._folder / CHECKPOINT, self._signed)

    def _take_up_signed(self) -> None:
        """Go on from a checkpoint that was signed and may have been seen, if its rename is lost.

        All that it covers was durable before it was signed, so it is checked like any other. One
        that is torn was seen by nobody.
        """
        self._signed: bytes | None = None
        path = self._folder / (CHECKPOINT + UNFINISHED)
        if not path.exists():
            return
        data = path.read_bytes()
        try:
            checkpoint = open_checkpoint(data, [self._signer.verifier])
        except VerificationError:
            return
        if checkpoint.size > self.checkpoint.size:
            self.checkpoint, self._signed = checkpoint, data

    def append(self, entries: Sequence[bytes], *, also: NoteSigner | None = None) -> Checkpoint:
        """Append entries, and return the published checkpoint that covers them.

        Args:
            entries: From `encode_entry`, at least one.
            also: Signs this one checkpoint, too.
        Raises:
            LedgerError: The disk refuses. Nothing is changed then, and it may be tried again.
        """
        if any(not 0 < len(entry) <= MAX_ENTRY_BYTES for entry in entries):
            raise UsageError(f"An entry has 1 to {MAX_ENTRY_BYTES} bytes.")
        edge, bundle = Edge(self._edge.levels), list(self._bundle)
        bundles, tiles, filled = self._grow(edge, bundle, entries)
        size = self.checkpoint.size + len(entries)
        checkpoint = Checkpoint(self._signer.name, size, edge.root())
        signers = [self._signer] if also is None else [self._signer, also]
        try:
            write_files(self._folder, bundles)
            write_files(self._folder, tiles)
            publish_file(self._folder / CHECKPOINT, sign_checkpoint(checkpoint, *signers))
        except OSError as exc:
            raise LedgerError(
                f"The log in {self._folder} cannot be written: {exc.strerror}."
            ) from exc
        self._edge, self._bundle, self.checkpoint = edge, bundle, checkpoint
        for tile in filled:
            # Whoever holds an earlier checkpoint finds the same hashes in the whole tile.
            shutil.rmtree((self._folder / tile.path).with_name(_partial(tile)), ignore_errors=True)
        return checkpoint

    def close(self) -> None:
        """Let others write."""
        self._lock.release()

    def _grow(
        self, edge: Edge, bundle: list[bytes], entries: Sequence[bytes]
    ) -> tuple[dict[str, bytes], dict[str, bytes], list[Tile]]:
        """Let edge and bundle grow; return bundles and tiles to write, and those that got full."""
        bundles: dict[str, bytes] = {}
        tiles: dict[str, bytes] = {}
        filled: list[Tile] = []
        before, place = self.checkpoint.size, 0
        widths = [len(level) for level in edge.levels]
        while place < len(entries):
            more = entries[place : place + TILE_WIDTH - len(bundle)]
            bundle.extend(more)
            tile = Tile(None, (before + place) // TILE_WIDTH, len(bundle))
            bundles[tile.path] = pack_bundle(bundle)
            place += len(more)
            for level, hashes in edge.grow([leaf_hash(entry) for entry in more]):
                index = ((before + place) >> (8 * (level + 1))) - 1
                full = Tile(level, index, TILE_WIDTH)
                tiles[full.path] = b"".join(hashes)
                filled.append(full)
            if len(bundle) == TILE_WIDTH:
                filled.append(tile)
                bundle.clear()
        for level, hashes in enumerate(edge.levels):
            index = (before + place) >> (8 * (level + 1))
            is_new = level >= len(widths) or index != before >> (8 * (level + 1))
            if hashes and (is_new or len(hashes) != widths[level]):
                tiles[Tile(level, index, len(hashes)).path] = b"".join(hashes)
        return bundles, tiles, filled

    def _read_last_bundle(self, log: LogFolder, hashes: TileHashes) -> list[bytes]:
        """Return the entries of the last bundle if it is not whole; check it in any case."""
        size = self.checkpoint.size
        if size == 0:
            return []
        tile = next(iter_tiles(None, size, begin=(size - 1) // TILE_WIDTH))
        entries = log.read_entries(tile)
        first = tile.index * TILE_WIDTH
        for number, entry in enumerate(entries):
            if hashes.range_root(first + number, first + number + 1) != leaf_hash(entry):
                raise VerificationError(
                    f"Entry {first + number} is not the one that its hash stands for.",
                    hint="Look with: kvward ledger verify DIR --key VKEY",
                )
        return entries if tile.width < TILE_WIDTH else []

    def _check_known(self, known: Checkpoint, hashes: TileHashes) -> None:
        is_later = known.origin == self.checkpoint.origin and known.size <= self.checkpoint.size
        if not is_later or Edge(hashes.edge(known.size)).root() != known.root:
            raise ForkError(
                "The log on disk does not continue the known checkpoint.",
                hint="Restore its newest state; never write on from an old copy.",
            )

    def _cut(self, log: LogFolder) -> int:
        """Remove what lies beyond the checkpoint; return how many whole entries that were."""
        size = self.checkpoint.size
        beyond = [tile for tile in iter_files(self._folder) if is_beyond(tile, size)]
        reached = size
        for tile in sorted(beyond, key=lambda tile: (tile.index, tile.width)):
            if tile.level is None and tile.index * TILE_WIDTH <= reached:
                try:
                    log.read_entries(tile)
                except VerificationError:
                    continue
                reached = max(reached, tile.index * TILE_WIDTH + tile.width)
        for tile in beyond:
            (self._folder / tile.path).unlink(missing_ok=True)
        return reached - size


def rotate_key(folder: Path, old: NoteSigner, new: NoteSigner, *, at_unix_ms: int) -> Checkpoint:
    """Let another key sign a log from now on, and write that down in it.

    The checkpoint in between is signed by both keys, so that whoever believes the old one can
    learn of the new one.

    Args:
        new: Of the same origin.
    Raises:
        UsageError: The new key is named otherwise.
        LedgerError: See `LogAppender`.
    """
    if new.name != old.name:
        raise UsageError("The new key of a log bears the log's name.")
    digests = [
        hashlib.sha256(signer.verifier.to_text().encode()).hexdigest() for signer in (old, new)
    ]
    entry = KeyRotated(at_unix_ms=at_unix_ms, old_key_digest=digests[0], new_key_digest=digests[1])
    appender = LogAppender(folder, old, known=None)
    try:
        return appender.append([encode_entry(entry)], also=new)
    finally:
        appender.close()


def iter_files(folder: Path) -> Iterator[Tile]:
    """Yield every tile and bundle that there is a file of, in no order."""
    for parent, _, names in os.walk(folder / "tile"):
        for name in names:
            tile = parse_path((Path(parent) / name).relative_to(folder).as_posix())
            if tile is not None:
                yield tile


def is_beyond(tile: Tile, size: int) -> bool:
    """Return whether a tile holds something that a log of this size does not have."""
    return tile.index * TILE_WIDTH + tile.width > size >> (8 * (tile.level or 0))


def _check_files(folder: Path, size: int) -> None:
    """Check that every file that a log of this size needs is there, with a length it can have."""
    for level in (None, *range(num_levels(size))):
        for tile in iter_tiles(level, size):
            path = folder / tile.path
            if tile.width < TILE_WIDTH and not path.exists():
                path = folder / Tile(level, tile.index, TILE_WIDTH).path
            try:
                num_bytes = path.stat().st_size
            except FileNotFoundError:
                num_bytes = 0
            if num_bytes == 0 or (level is not None and num_bytes % HASH_BYTES):
                raise VerificationError(
                    f"The file {tile.path} of the log is missing or cut.",
                    hint="Look with: kvward ledger fsck DIR --key VKEY",
                )


def _partial(tile: Tile) -> str:
    return f"{Path(tile.path).name}.p"
