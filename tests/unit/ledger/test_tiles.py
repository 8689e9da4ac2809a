"""Where files lie, and proofs that are computed from few of them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kvward.errors import UsageError, VerificationError
from kvward.ledger.append import iter_files
from kvward.ledger.merkle import (
    consistency_proof,
    consistency_ranges,
    inclusion_proof,
    inclusion_ranges,
    leaf_hash,
    tree_root,
)
from kvward.ledger.tiles import (
    Edge,
    LogFolder,
    Tile,
    TileHashes,
    iter_tiles,
    num_levels,
    pack_bundle,
    parse_bundle,
    parse_path,
)
from ledgers import make_log


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        (Tile(0, 0, 256), "tile/0/000"),
        (Tile(3, 999, 256), "tile/3/999"),
        (Tile(0, 1000, 256), "tile/0/x001/000"),
        (Tile(1, 1234067, 256), "tile/1/x001/x234/067"),
        (Tile(0, 1234067, 8), "tile/0/x001/x234/067.p/8"),
        (Tile(None, 273, 112), "tile/entries/273.p/112"),
        (Tile(None, 5, 256), "tile/entries/005"),
    ],
)
def test_a_tile_has_one_path(tile: Tile, path: str) -> None:
    assert tile.path == path
    assert parse_path(path) == tile


@pytest.mark.parametrize(
    "path",
    [
        "", "checkpoint", "tile", "tile/0", "tile/00/000", "tile/0/1", "tile/0/0000",
        "tile/0/001/000", "tile/0/x000/001", "tile/0/000.p", "tile/0/000.p/0", "tile/0/000.p/256",
        "tile/0/000.p/08", "tile/x/000", "tile/-1/000", "other/0/000", "tile/0/000.p/1.new",
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_log_is_none(path: str) -> None:
    assert parse_path(path) is None


def test_the_example_of_the_standard() -> None:
    """A tree of 70,000: 273 whole tiles and one of 112, one and one of 17, one of 1."""
    tiles = {level: list(iter_tiles(level, 70_000)) for level in range(num_levels(70_000))}
    assert [len(found) for found in tiles.values()] == [274, 2, 1]
    assert [found[-1].width for found in tiles.values()] == [112, 17, 1]
    assert [tile.width for tile in iter_tiles(1, 256)] == [1]
    assert [tile.width for tile in iter_tiles(0, 256)] == [256]
    assert num_levels(0) == 0


def test_a_bundle_comes_back_and_is_strict() -> None:
    entries = [b"", b"a", bytes(65_535)]
    data = pack_bundle(entries)
    assert data[:5] == b"\x00\x00\x00\x01a"
    assert parse_bundle(data, width=3) == entries
    for width, wrong in ((2, data), (4, data), (3, data[:-1]), (3, data + b"\x00"), (1, b"\x00")):
        with pytest.raises(VerificationError):
            parse_bundle(wrong, width=width)


SIZES = (1, 3, 251, 1, 1, 255, 256, 257, 3000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    make_log(folder, *SIZES)
    return folder


def test_heads_and_proofs_from_tiles_are_those_from_all_leaves(folder: Path) -> None:
    size = sum(SIZES)
    leaves = [leaf_hash(entry) for entry in LogFolder(folder).iter_entries(size)]
    rng = random.Random(1)
    for _ in range(30):
        end = rng.randint(1, size)
        hashes = TileHashes(LogFolder(folder), size)
        index, begin = rng.randrange(end), rng.randint(0, end)
        assert Edge(hashes.edge(end)).root() == tree_root(leaves[:end])
        found = [hashes.range_root(*leaf_range) for leaf_range in inclusion_ranges(index, end)]
        assert found == inclusion_proof(leaves, index, end)
        found = [hashes.range_root(*leaf_range) for leaf_range in consistency_ranges(begin, end)]
        assert found == consistency_proof(leaves, begin, end)


def test_a_proof_reads_few_tiles(folder: Path) -> None:
    reads = []

    class Counting(LogFolder):
        def read_hashes(self, tile: Tile) -> list[bytes]:
            reads.append(tile)
            return super().read_hashes(tile)

    size = sum(SIZES)
    hashes = TileHashes(Counting(folder), size)
    for leaf_range in inclusion_ranges(1000, size):
        hashes.range_root(*leaf_range)
    assert len(reads) <= 2 * num_levels(size)


def test_partial_tiles_end_with_the_whole_one_and_earlier_sizes_stay_readable(
    folder: Path,
) -> None:
    partial = [tile for tile in iter_files(folder) if tile.width < 256]
    size = sum(SIZES)
    assert {(tile.level, tile.index) for tile in partial} == {
        (None, size // 256), (0, size // 256), (1, 0)
    }  # fmt: skip
    entries = list(LogFolder(folder).iter_entries(size))
    for earlier in (1, 4, 255, 513, 1024):
        assert list(LogFolder(folder).iter_entries(earlier)) == entries[:earlier]
    hashes = [leaf_hash(entry) for entry in entries[:4]]
    assert LogFolder(folder).read_hashes(Tile(0, 0, 4)) == hashes


def test_an_entry_is_read_by_its_index(folder: Path) -> None:
    log, size = LogFolder(folder), sum(SIZES)
    entries = list(log.iter_entries(size))
    for index in (0, 255, 256, size - 1):
        assert log.read_entry(index, size=size) == entries[index]
    for index in (-1, size):
        with pytest.raises(UsageError):
            log.read_entry(index, size=size)


def test_what_is_missing_or_too_long_is_said(tmp_path: Path) -> None:
    make_log(tmp_path, 300)
    log = LogFolder(tmp_path)
    path = tmp_path / "tile" / "0" / "000"
    path.write_bytes(bytes(8192 + 1))
    with pytest.raises(VerificationError, match="longer"):
        log.read_hashes(Tile(0, 0, 256))
    path.write_bytes(bytes(8191))
    with pytest.raises(VerificationError, match="another length"):
        log.read_hashes(Tile(0, 0, 256))
    path.unlink()
    with pytest.raises(VerificationError, match="missing"):
        log.read_hashes(Tile(0, 0, 256))
    path.mkdir()
    with pytest.raises(VerificationError, match="cannot be read"):
        log.read_hashes(Tile(0, 0, 256))
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(VerificationError, match="no checkpoint"):
        log.read_checkpoint()
    os.mkfifo(tmp_path / "checkpoint")
    assert log.read_checkpoint() == b""


def test_an_edge_takes_no_more_than_its_tile_has_room_for() -> None:
    edge = Edge()
    list(edge.grow([bytes(32)] * 200))
    with pytest.raises(UsageError):
        list(edge.grow([bytes(32)] * 57))
