"""Digests of weights and adapters follow every byte, and remember only what has settled."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from kvward.blocks import files
from kvward.blocks.files import FileDigests, digest_named_files, identify_file, list_files
from kvward.errors import ConfigError

HOUR_NS = 3600 * 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.bin").write_bytes(b"aaaa")
    (tmp_path / "model" / "b.bin").write_bytes(b"bb")
    return tmp_path / "model"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour after everything was written."""
    now = time.time_ns
    monkeypatch.setattr(files.time, "time_ns", lambda: now() + HOUR_NS)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read through."""
    read: list[str] = []
    real = hashlib.file_digest

    def file_digest(file: object, kind: str) -> object:
        read.append(Path(file.name).name)
        return real(file, kind)

    monkeypatch.setattr(files.hashlib, "file_digest", file_digest)
    return read


def fresh(folder: Path) -> bytes:
    return FileDigests().digest(folder, list_files(folder))


def test_weights_under_an_unchanged_name_change_the_digest(folder: Path) -> None:
    before = fresh(folder)
    (folder / "a.bin").write_bytes(b"aaab")
    assert fresh(folder) != before
    (folder / "a.bin").write_bytes(b"aaaa")
    assert fresh(folder) == before


def test_place_does_not_count_but_names_and_borders_do(folder: Path, tmp_path: Path) -> None:
    before = fresh(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    assert fresh(moved) == before
    digests = {before}
    (moved / "a.bin").write_bytes(b"aaa")
    (moved / "b.bin").write_bytes(b"abb")  # the same bytes, cut elsewhere
    digests.add(fresh(moved))
    (moved / "a.bin").write_bytes(b"aaaa")
    (moved / "b.bin").rename(moved / "c.bin")
    digests.add(fresh(moved))
    (moved / "sub").mkdir()
    (moved / "c.bin").rename(moved / "sub" / "b.bin")
    digests.add(fresh(moved))
    (moved / "empty").touch()
    digests.add(fresh(moved))
    assert len(digests) == 5


def test_which_files_count_is_said_by_name(folder: Path) -> None:
    digests = FileDigests()
    assert digests.digest(folder, ["a.bin"]) != digests.digest(folder, ["a.bin", "b.bin"])
    assert digests.digest(folder, ["b.bin", "a.bin", "a.bin"]) == fresh(folder)
    with pytest.raises(ConfigError, match="nothing to digest"):
        digests.digest(folder, [])


def test_digest_is_that_of_names_lengths_and_hashes(folder: Path) -> None:
    listed = [(n, len(c), hashlib.sha256(c).digest()) for n, c in [("b.bin", b"bb"),
                                                                  ("a.bin", b"aaaa")]]  # fmt: skip
    assert digest_named_files(listed) == fresh(folder)


@pytest.mark.usefixtures("later")
def test_settled_file_is_read_once(folder: Path, reads: list[str]) -> None:
    digests = FileDigests()
    first = digests.digest(folder, ["a.bin", "b.bin"])
    assert digests.digest(folder, ["a.bin", "b.bin"]) == first
    assert reads == ["a.bin", "b.bin"]


def test_young_file_is_read_again(folder: Path, reads: list[str]) -> None:
    digests = FileDigests()
    digests.digest(folder, ["a.bin"])
    digests.digest(folder, ["a.bin"])
    assert reads == ["a.bin", "a.bin"]


def test_old_time_stamp_on_a_young_file_does_not_make_it_settled(
    folder: Path, reads: list[str]
) -> None:
    os.utime(folder / "a.bin", (0, 0))
    digests = FileDigests()
    digests.digest(folder, ["a.bin"])
    digests.digest(folder, ["a.bin"])
    assert reads == ["a.bin", "a.bin"]


@pytest.mark.usefixtures("later")
def test_adapter_reloaded_in_place_is_seen(folder: Path) -> None:
    """K-ADAPTER: same name, same length, same time of modification, other bytes."""
    digests = FileDigests()
    status = (folder / "a.bin").stat()
    before = digests.digest(folder, list_files(folder))
    with (folder / "a.bin").open("r+b") as file:
        file.write(b"b")
    os.utime(folder / "a.bin", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests.digest(folder, list_files(folder)) != before


@pytest.mark.usefixtures("later")
def test_adapter_that_replaces_another_by_renaming_is_seen(folder: Path) -> None:
    digests = FileDigests()
    before = digests.digest(folder, list_files(folder))
    (folder.parent / "new").write_bytes(b"cccc")
    (folder.parent / "new").replace(folder / "a.bin")
    assert digests.digest(folder, list_files(folder)) != before


def test_file_that_changes_while_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hashlib.file_digest

    def file_digest(file: object, kind: str) -> object:
        digest = real(file, kind)
        with (folder / "a.bin").open("ab") as other:
            other.write(b"more")
        return digest

    monkeypatch.setattr(files.hashlib, "file_digest", file_digest)
    with pytest.raises(ConfigError, match="changed while it was read") as caught:
        FileDigests().digest(folder, ["a.bin"])
    assert caught.value.hint


def test_what_is_no_file_is_refused_at_once(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for name, words in [("missing", "cannot be read"), (".", "cannot be read"),
                        ("pipe", "not a regular file")]:  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            FileDigests().digest(folder, [name])


def test_link_to_a_file_is_followed_and_to_a_folder_refused(folder: Path, tmp_path: Path) -> None:
    before = fresh(folder)
    (folder / "a.bin").rename(tmp_path / "blob")
    (folder / "a.bin").symlink_to(tmp_path / "blob")
    assert fresh(folder) == before
    (tmp_path / "more").mkdir()
    (folder / "more").symlink_to(tmp_path / "more")
    with pytest.raises(ConfigError, match="link to a folder") as caught:
        list_files(folder)
    assert caught.value.hint


def test_folder_without_files_or_with_unreadable_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no files"):
        list_files(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        list_files(tmp_path / "missing")
    (tmp_path / os.fsdecode(b"\xff")).touch()
    with pytest.raises(ConfigError, match="not UTF-8"):
        list_files(tmp_path)


def test_two_files_are_never_one_file(folder: Path) -> None:
    status = (folder / "a.bin").stat()
    assert identify_file(folder / "a.bin") == (
        status.st_dev,
        status.st_ino,
        4,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
