"""Adapters by content: known in three cases, and in every other nobody knows."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kvward.adapters.vllm.adapter_files import AdapterFiles, AdapterRequest
from kvward.blocks.manifest import AdapterIdentity
from kvward.events import EventCounter

LONG_AGO, FAR_AHEAD = 0.0, 2.0**33


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "weights.safetensors").write_bytes(b"one")
    return folder


def files(
    *, started: float = FAR_AHEAD, are_immutable: bool = False
) -> tuple[AdapterFiles, EventCounter]:
    events = EventCounter()
    made = AdapterFiles(started_unix_s=started, are_immutable=are_immutable, events=events)
    return made, events


def request(folder: Path, *, number: int = 1, is_reloaded: bool = False) -> AdapterRequest:
    return AdapterRequest(number=number, folder=folder, is_reloaded=is_reloaded)


def test_files_older_than_the_engine_are_known(folder: Path) -> None:
    known, events = files()
    one = known.identify(request(folder))
    assert one is not None
    assert one == known.identify(request(folder)) == known.identify(request(folder, number=2))
    assert events.counts() == {}


def test_files_newer_than_the_engine_are_known_only_by_the_operators_word(folder: Path) -> None:
    unsure, events = files(started=LONG_AGO)
    assert unsure.identify(request(folder)) is None
    assert events.counts()["vllm.adapter-unknown:newer-than-the-engine"] == 1
    sure, _ = files(started=LONG_AGO, are_immutable=True)
    assert sure.identify(request(folder)) is not None


def test_files_that_the_engine_reads_for_every_request_are_known_as_they_are(folder: Path) -> None:
    known, _ = files(started=LONG_AGO)
    one = known.identify(request(folder, is_reloaded=True))
    (folder / "weights.safetensors").write_bytes(b"two")
    two = known.identify(request(folder, is_reloaded=True))
    assert one is not None
    assert two is not None
    assert one != two


@pytest.mark.parametrize("are_immutable", [True, False])
@pytest.mark.parametrize("change", ["content", "added", "removed", "renamed"])
def test_files_that_change_after_their_first_request_are_not_known(
    folder: Path, are_immutable: bool, change: str
) -> None:
    known, events = files(are_immutable=are_immutable)
    assert known.identify(request(folder)) is not None
    weights = folder / "weights.safetensors"
    match change:
        case "content":
            weights.write_bytes(b"two")
        case "added":
            (folder / "more").write_bytes(b"")
        case "removed":
            weights.unlink()
        case "renamed":
            weights.rename(folder / "other.safetensors")
    assert known.identify(request(folder)) is None
    assert events.counts()["vllm.adapter-unknown:changed-on-disk"] == 1
    # Loaded anew under another number, it is what it is now.
    assert known.identify(request(folder, number=2)) is not None


def test_file_with_an_old_date_is_as_new_as_its_inode_says(folder: Path) -> None:
    started = time.time() - 60
    os.utime(folder / "weights.safetensors", (1, 1))
    known, _ = files(started=started)
    assert known.identify(request(folder)) is None


@pytest.mark.parametrize("what", ["absent", "empty", "file", "link", "surrogate"])
def test_folder_that_cannot_be_read_is_not_known(folder: Path, tmp_path: Path, what: str) -> None:
    known, events = files(are_immutable=True)
    place = tmp_path / what
    match what:
        case "empty":
            place.mkdir()
        case "file":
            place.write_bytes(b"")
        case "link":
            place.mkdir()
            (place / "inner").symlink_to(folder)
        case "surrogate":
            place.mkdir()
            (place / "\udcff").write_bytes(b"")
    assert known.identify(request(place)) is None
    assert known.identify(request(place, is_reloaded=True)) is None
    assert events.counts()["vllm.adapter-unknown:unreadable"] == 2


def test_name_of_a_repository_in_place_of_a_folder_is_not_known() -> None:
    known, _ = files(are_immutable=True)
    assert known.identify(request(Path("owner/name"))) is None


def test_check_before_keeping_sees_a_change_and_a_loss(folder: Path) -> None:
    known, _ = files(started=LONG_AGO)
    asked = request(folder, is_reloaded=True)
    identity = known.identify(asked)
    assert identity is not None
    still = known.still(asked, identity)
    assert still()
    assert not known.still(asked, AdapterIdentity(digest=b"x" * 32, scaling="from-files"))()
    (folder / "weights.safetensors").write_bytes(b"two")
    assert not still()
    (folder / "weights.safetensors").unlink()
    (folder / "adapter_config.json").unlink()
    assert not still()


def test_path_with_a_zero_byte_is_not_known() -> None:
    known, _ = files()
    assert known.identify(request(Path("a\0b"))) is None
