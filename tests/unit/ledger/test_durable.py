"""What a loss of power may not undo is synchronised before anything refers to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvward.ledger import durable
from kvward.ledger.append import LogAppender, begin_log
from kvward.ledger.entry import encode_entry
from kvward.ledger.tiles import iter_tiles, num_levels
from ledgers import SIGNER, counted


class Watch:
    """Notes in order which files and folders are written, synchronised and renamed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, top: Path) -> None:
        self.steps: list[tuple[str, str]] = []
        fsync, write, rename = os.fsync, durable._write, Path.rename

        def note(what: str, path: Path) -> None:
            name = path.relative_to(top).as_posix() if path.is_relative_to(top) else str(path)
            self.steps.append((what, name))

        def watched_fsync(descriptor: int) -> None:
            fsync(descriptor)
            note("fsync", Path(f"/proc/self/fd/{descriptor}").readlink())

        def watched_write(path: Path, data: bytes) -> None:
            note("write", path)
            write(path, data)

        def watched_rename(path: Path, target: Path) -> Path:
            note("rename", target)
            return rename(path, target)

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(durable, "_write", watched_write)
        monkeypatch.setattr(Path, "rename", watched_rename)

    def place(self, what: str, name: str) -> int:
        return self.steps.index((what, name))


@pytest.mark.parametrize("groups", [(1,), (300,), (255, 2), (256, 1), (700, 70_000)])
def test_all_that_a_checkpoint_covers_is_durable_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: tuple[int, ...]
) -> None:
    begin_log(tmp_path, SIGNER)
    appender = LogAppender(tmp_path, SIGNER, known=None)
    entries = [encode_entry(counted(number)) for number in range(256)]
    for group in groups:
        watch = Watch(monkeypatch, tmp_path)
        before = appender.checkpoint.size
        appender.append((entries * (1 + group // 256))[:group])
        published = watch.place("rename", "checkpoint")
        size = before + group
        written = {
            tile.path
            for level in (None, *range(num_levels(size)))
            for tile in iter_tiles(level, size)
        } & {name for what, name in watch.steps if what == "write"}
        assert any(name.startswith("tile/entries") for name in written)
        entries_end, tiles_begin = 0, len(watch.steps)
        for name in written:
            at = watch.place("write", name)
            assert at < watch.place("fsync", name) < published
            if name.startswith("tile/entries"):
                entries_end = max(entries_end, watch.place("fsync", name))
            else:
                tiles_begin = min(tiles_begin, at)
            # So are the names on the way to it, if they are new.
            for parent in Path(name).parents:
                if str(parent) != "." and before == 0:
                    assert watch.place("fsync", str(parent)) < published
        # Entries first: tiles can be made anew from them, they from nothing.
        assert entries_end < tiles_begin
        unfinished = watch.place("fsync", "checkpoint.new")
        assert ("fsync", ".") in watch.steps[unfinished:published]
        # And nobody hears of the checkpoint before its name is durable.
        assert ("fsync", ".") in watch.steps[published:]
        monkeypatch.undo()
    appender.close()
