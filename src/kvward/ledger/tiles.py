"""Where a log lies on disk: tiles of hashes, bundles of entries, one checkpoint.

```
checkpoint                     signed note
tile/<L>/<N>                   256 hashes: of level L, which stand for 256^L entries each
tile/entries/<N>               256 entries, each with its length before it, 16 bits big-endian
tile/…/<N>.p/<W>               the same, of W < 256 hashes or entries, at the right edge
```

N is written in groups of three digits, all but the last with an x before: 1234067 is
`x001/x234/067`. Only what the checkpoint's size needs counts; other files are passed over.

Source: C2SP tlog-tiles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvward.errors import UsageError, VerificationError
from kvward.ledger.entry import MAX_ENTRY_BYTES
from kvward.ledger.merkle import HASH_BYTES, tree_root

TILE_WIDTH = 256
TILE_HEIGHT = 8
CHECKPOINT = "checkpoint"
_ENTRIES = "entries"
_LENGTH_BYTES = 2
_MAX_CHECKPOINT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Tile:
    """One file of a log.

    Attributes:
        level: Of its hashes; None for a bundle of entries.
        index: From 0, within the level.
        width: How many hashes or entries, 1 to 256.
    """

    level: int | None
    index: int
    width: int

    @property
    def path(self) -> str:
        """Return where it lies below the log's folder."""
        level = _ENTRIES if self.level is None else str(self.level)
        suffix = "" if self.width == TILE_WIDTH else f".p/{self.width}"
        return f"tile/{level}/{_index_path(self.index)}{suffix}"


def parse_path(path: str) -> Tile | None:
    """Return what lies at a path below the log's folder; None for what is no part of a log."""
    parts = path.split("/")
    if len(parts) > 3 and parts[-2].endswith(".p"):
        width, parts = parts[-1], [*parts[:-2], parts[-2][:-2]]
    else:
        width = str(TILE_WIDTH)
    try:
        index = int("".join(part.removeprefix("x") for part in parts[2:]))
        tile = Tile(None if parts[1] == _ENTRIES else int(parts[1]), index, int(width))
    except (ValueError, IndexError):
        return None
    # One spelling: what the tile itself would be called.
    is_one = 0 < tile.width <= TILE_WIDTH and (tile.level or 0) >= 0
    return tile if is_one and tile.path == path else None


def iter_tiles(level: int | None, size: int, *, begin: int = 0) -> Iterator[Tile]:
    """Yield the tiles of one level, or the bundles of entries, that a log of `size` has."""
    num_hashes = size >> (TILE_HEIGHT * (level or 0))
    for index in range(begin, -(-num_hashes // TILE_WIDTH)):
        yield Tile(level, index, min(TILE_WIDTH, num_hashes - index * TILE_WIDTH))


def num_levels(size: int) -> int:
    """Return how many levels of tiles a log of `size` has."""
    levels = 0
    while size >> (TILE_HEIGHT * levels):
        levels += 1
    return levels


def pack_bundle(entries: Sequence[bytes]) -> bytes:
    """Return the bytes of a bundle of entries."""
    return b"".join(
        part for entry in entries for part in (len(entry).to_bytes(_LENGTH_BYTES, "big"), entry)
    )


def parse_bundle(data: bytes, *, width: int) -> list[bytes]:
    """Take a bundle apart.

    Args:
        data: [untrusted]
        width: How many entries it has to hold.
    Raises:
        VerificationError: It holds another number, or its lengths do not fit.
    """
    entries, place, end = [], 0, len(data)
    while place < end:
        first = place + _LENGTH_BYTES
        place = first + int.from_bytes(data[place:first], "big")
        if place > end:
            raise VerificationError("A bundle of entries ends in the middle of an entry.")
        entries.append(data[first:place])
    if len(entries) != width:
        raise VerificationError(f"A bundle holds {len(entries)} entries in place of {width}.")
    return entries


class LogFolder:
    """Reads a log's files. It checks their form, and nothing else.

    Args:
        path: Folder of the log. What lies in it is not trusted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_checkpoint(self) -> bytes:
        """Return the signed note. [untrusted]

        Raises:
            VerificationError: There is none.
        """
        data = self._read(CHECKPOINT, _MAX_CHECKPOINT_BYTES)
        if data is None:
            raise VerificationError(
                f"There is no checkpoint in {self.path}.",
                hint="A log is begun with: kvward ledger init DIR --origin NAME",
            )
        return data

    def read_hashes(self, tile: Tile) -> list[bytes]:
        """Return the hashes of a tile. [untrusted]

        Raises:
            VerificationError: The file is missing or of another length.
        """
        num_bytes = tile.width * HASH_BYTES
        data = self._read_either(tile, num_bytes, TILE_WIDTH * HASH_BYTES)
        if len(data) != num_bytes:
            raise VerificationError(
                f"The tile {tile.path} has another length than its place says.",
                hint="Tiles are made anew from entries by: kvward ledger fsck DIR --repair",
            )
        return [data[place : place + HASH_BYTES] for place in range(0, num_bytes, HASH_BYTES)]

    def read_entries(self, tile: Tile) -> list[bytes]:
        """Return the entries of a bundle. [untrusted]

        Raises:
            VerificationError: The file is missing or damaged.
        """
        most = TILE_WIDTH * (_LENGTH_BYTES + MAX_ENTRY_BYTES)
        data = self._read_either(tile, None, most)
        try:
            return parse_bundle(data, width=tile.width)
        except VerificationError as exc:
            raise VerificationError(f"{tile.path}: {exc.message}") from None

    def iter_bundles(self, size: int) -> Iterator[tuple[Tile, list[bytes]]]:
        """Yield all bundles of a log of `size`, from the first entry on. [untrusted]"""
        for tile in iter_tiles(None, size):
            yield tile, self.read_entries(tile)

    def iter_entries(self, size: int) -> Iterator[bytes]:
        """Yield the bytes of all entries of a log of `size`. [untrusted]"""
        for _, entries in self.iter_bundles(size):
            yield from entries

    def read_entry(self, index: int, *, size: int) -> bytes:
        """Return one entry of a log of `size`. [untrusted]

        Raises:
            UsageError: The log has no such entry.
        """
        if not 0 <= index < size:
            raise UsageError(f"A log of {size} entries has no entry {index}.")
        tile = next(iter_tiles(None, size, begin=index // TILE_WIDTH))
        return self.read_entries(tile)[index % TILE_WIDTH]

    def _read_either(self, tile: Tile, num_bytes: int | None, most: int) -> bytes:
        """Read a partial tile; where it has been replaced by the whole one, its beginning."""
        data = self._read(tile.path, most)
        if data is None and tile.width < TILE_WIDTH:
            whole = self._read(Tile(tile.level, tile.index, TILE_WIDTH).path, most)
            if whole is not None and num_bytes is None:
                data = pack_bundle(parse_bundle(whole, width=TILE_WIDTH)[: tile.width])
            elif whole is not None:
                data = whole[:num_bytes]
        if data is None:
            raise VerificationError(f"The file {tile.path} of the log is missing.")
        return data

    def _read(self, name: str, most: int) -> bytes | None:
        try:
            with open(self.path / name, "rb", opener=_open_at_once) as file:
                data = file.read(most + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise VerificationError(
                f"The file {name} of the log cannot be read: {exc.strerror}."
            ) from exc
        if len(data) > most:
            raise VerificationError(f"The file {name} of the log is longer than it may be.")
        return data


class TileHashes:
    """Roots of any ranges of a log's leaves, from a few tiles.

    Args:
        folder: [untrusted], and so is what it gives: whoever uses a proof checks it.
        size: Of the log.
    Cost:
        At most two tiles of each level for a root; tiles are read once.
    """

    def __init__(self, folder: LogFolder, size: int) -> None:
        self._folder = folder
        self._size = size
        self._read: dict[tuple[int, int], list[bytes]] = {}

    def range_root(self, first: int, end: int) -> bytes:
        """Return the root of the leaves from `first` up to, not including, `end`.

        Args:
            first: A multiple of the smallest power of two that is not less than `end` - `first`,
                as ranges of proofs are.
        """
        width = end - first
        # The widest hashes that tiles hold: whole ones for the range, the rest below them.
        level = max(0, (width.bit_length() - 1) // TILE_HEIGHT)
        step = 1 << (TILE_HEIGHT * level)
        whole = width // step
        hashes = [self._hash(level, first // step + place) for place in range(whole)]
        if rest := width - whole * step:
            hashes.append(self.range_root(end - rest, end))
        return tree_root(hashes)

    def edge(self, size: int | None = None) -> list[list[bytes]]:
        """Return the hashes of the last tile of each level of the log, or of an earlier size.

        A level whose tiles are all whole has an empty list.
        """
        size = self._size if size is None else size
        found = []
        for level in range(num_levels(size)):
            num_hashes = size >> (TILE_HEIGHT * level)
            begin = num_hashes - num_hashes % TILE_WIDTH
            found.append([self._hash(level, index) for index in range(begin, num_hashes)])
        return found

    def _hash(self, level: int, index: int) -> bytes:
        place = (level, index // TILE_WIDTH)
        if place not in self._read:
            tile = next(iter_tiles(level, self._size, begin=place[1]))
            self._read[place] = self._folder.read_hashes(tile)
        return self._read[place][index % TILE_WIDTH]


def edge_root(edge: Sequence[Sequence[bytes]]) -> bytes:
    """Return the root of a log from the hashes of its last tile of each level."""
    below: list[bytes] = []
    for hashes in edge:
        # What is left over below stands beside whole hashes as the last, smaller subtree.
        together = [*hashes, *below]
        below = [tree_root(together)] if together else []
    return below[0] if below else tree_root([])


class Edge:
    """The right edge of a growing log: the hashes of the last tile of each level.

    Args:
        hashes: As `TileHashes.edge` gives them.
    """

    def __init__(self, hashes: Sequence[Sequence[bytes]] = ()) -> None:
        self.levels = [list(level) for level in hashes]

    def root(self, extra: Sequence[bytes] = ()) -> bytes:
        """Return the root of all leaves so far, and of a few more that do not fill a tile."""
        levels = self.levels or [[]]
        return edge_root([[*levels[0], *extra], *levels[1:]])

    def grow(self, leaf_hashes: Sequence[bytes]) -> Iterator[tuple[int, list[bytes]]]:
        """Add leaves; yield level and hashes of each tile that became whole, lowest level first.

        Args:
            leaf_hashes: At most as many as the last tile of level 0 has room for.
        """
        level, more = 0, list(leaf_hashes)
        while more:
            if level == len(self.levels):
                self.levels.append([])
            hashes = self.levels[level]
            hashes.extend(more)
            if len(hashes) > TILE_WIDTH:
                raise UsageError("More leaves were added at once than a tile has room for.")
            more = []
            if len(hashes) == TILE_WIDTH:
                self.levels[level] = []
                yield level, hashes
                more = [tree_root(hashes)]
            level += 1


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting, should somebody have put a pipe in a file's place."""
    return os.open(path, flags | os.O_NONBLOCK)


def _index_path(index: int) -> str:
    groups = []
    rest = index
    while True:
        rest, group = divmod(rest, 1000)
        groups.append(f"{group:03}")
        if rest == 0:
            break
    return "/".join([*(f"x{group}" for group in reversed(groups[1:])), groups[0]])
