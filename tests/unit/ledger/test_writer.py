"""The writer: never in the way, nothing acknowledged lost, refuses what it must not continue."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvward.errors import (
    CheckpointSignatureError,
    ForkError,
    LedgerBusyError,
    LedgerError,
    UsageError,
    VerificationError,
)
from kvward.ledger import append as append_module
from kvward.ledger import writer as writer_module
from kvward.ledger.append import LogAppender, begin_log, rotate_key
from kvward.ledger.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from kvward.ledger.entry import EntriesDropped, KeyRotated, decode_entry, encode_entry
from kvward.ledger.names import DropReason
from kvward.ledger.note import NoteSigner
from kvward.ledger.tiles import LogFolder, pack_bundle
from kvward.ledger.verify import verify_log
from kvward.ledger.writer import LedgerWriter
from ledgers import ORIGIN, SIGNER, counted, make_log


def entries_of(folder: Path) -> list[object]:
    found = verify_log(folder, [SIGNER.verifier], None)
    return [decode_entry(data) for data in LogFolder(folder).iter_entries(found.checkpoint.size)]


def open_writer(folder: Path, **settings: object) -> LedgerWriter:
    return LedgerWriter(folder, SIGNER, known=None, **settings)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    begin_log(tmp_path / "log", SIGNER)
    return tmp_path / "log"


class Gate:
    """Holds every write of a log back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        write_files = append_module.write_files

        def held(folder: Path, files: dict[str, bytes]) -> None:
            self.reached.set()
            assert self.opened.wait(30)
            write_files(folder, files)

        monkeypatch.setattr(append_module, "write_files", held)


@pytest.mark.parametrize("sizes", [[1], [255, 1, 1], [256], [257, 700], [3, 3, 3, 600, 256]])
def test_what_was_appended_is_there_in_order(folder: Path, sizes: Sequence[int]) -> None:
    number = 0
    for size in sizes:
        with open_writer(folder) as writer:
            for _ in range(size):
                assert writer.append(counted(number)) == number
                number += 1
            assert writer.flush().size == number == writer.checkpoint.size
    assert entries_of(folder) == [counted(place) for place in range(number)]


def test_durable_is_what_a_published_checkpoint_covers(folder: Path) -> None:
    with open_writer(folder, linger_s=30) as writer:
        for number in range(5):
            assert writer.append_durable(counted(number)) == number
            note = LogFolder(folder).read_checkpoint()
            assert open_checkpoint(note, [SIGNER.verifier]).size == number + 1


def test_closing_writes_what_waits_and_ends(folder: Path) -> None:
    writer = open_writer(folder, linger_s=30)
    writer.append(counted(0))
    writer.close()
    writer.close()
    assert entries_of(folder) == [counted(0)]
    assert writer.append(counted(1)) is None
    with pytest.raises(LedgerError):
        writer.append_durable(counted(1), timeout_s=0.1)


def test_many_threads_write_one_log(folder: Path) -> None:
    found: dict[int, object] = {}

    def work(first: int) -> None:
        for number in range(first, first + 100):
            index = writer.append(counted(number))
            assert index is not None
            found[index] = counted(number)

    with open_writer(folder) as writer:
        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 800, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert entries_of(folder) == [found[index] for index in range(800)]


def test_a_full_queue_drops_and_says_how_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with open_writer(folder, queue_entries=10, linger_s=0, clock=lambda: 77) as writer:
        writer.append(counted(0))
        assert gate.reached.wait(30)
        began = time.monotonic()
        taken = [writer.append(counted(number)) for number in range(1, 30)]
        assert time.monotonic() - began < 1
        assert [index for index in taken if index is not None] == list(range(1, 10))
        assert writer.num_dropped == 20
        gate.opened.set()
        writer.flush()
        assert writer.append(counted(99)) is not None
        writer.flush()
        assert writer.num_dropped == 0
    entries = entries_of(folder)
    dropped = EntriesDropped(at_unix_ms=77, reason=DropReason.QUEUE_FULL, count=20)
    assert entries == [*map(counted, range(10)), dropped, counted(99)]
    assert verify_log(folder, [SIGNER.verifier], None).num_dropped == 20


def test_drops_are_written_down_though_nothing_follows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with open_writer(folder, queue_entries=2, linger_s=0) as writer:
        writer.append(counted(0))
        assert gate.reached.wait(30)
        assert [writer.append(counted(number)) for number in (1, 2, 3)] == [1, None, None]
        gate.opened.set()
    assert [getattr(entry, "kind", type(entry).__name__) for entry in entries_of(folder)] == [
        "EventsCounted",
        "EventsCounted",
        "EntriesDropped",
    ]


def test_durable_waits_for_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with open_writer(folder, queue_entries=2, linger_s=0) as writer:
        writer.append(counted(0))
        assert gate.reached.wait(30)
        writer.append(counted(1))
        with pytest.raises(LedgerError, match="in time"):
            writer.append_durable(counted(2), timeout_s=0.05)
        with pytest.raises(LedgerError, match="in time"):
            writer.flush(timeout_s=0.05)
        threading.Timer(0.05, gate.opened.set).start()
        assert writer.append_durable(counted(3)) == 2
    assert entries_of(folder) == [counted(0), counted(1), counted(3)]


def failing(times: int, working: Callable[..., None]) -> Callable[..., None]:
    left = [times]

    def work(*arguments: object) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        working(*arguments)

    return work


@pytest.mark.parametrize("name", ["write_files", "publish_file"])
def test_a_full_disk_is_tried_again_and_nothing_is_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.01)
    with open_writer(folder, linger_s=0) as writer:
        monkeypatch.setattr(append_module, name, failing(3, getattr(append_module, name)))
        assert [writer.append(counted(number)) for number in range(300)] == list(range(300))
        assert writer.flush().size == 300
    assert entries_of(folder) == [counted(number) for number in range(300)]


def test_a_disk_that_stays_full_is_said_when_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.01)
    monkeypatch.setattr(append_module, "write_files", failing(10**9, append_module.write_files))
    writer = open_writer(folder, linger_s=0)
    assert writer.append(counted(0)) == 0
    with pytest.raises(LedgerError, match="No space left"):
        writer.flush(timeout_s=0.2)
    with pytest.raises(LedgerError, match="1 entries"):
        writer.close()
    assert entries_of(folder) == []


def test_one_log_has_one_writer(folder: Path) -> None:
    with open_writer(folder), pytest.raises(LedgerBusyError, match="Another process"):
        open_writer(folder)
    with open_writer(folder):
        pass


def test_a_folder_without_a_log_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="no checkpoint"):
        open_writer(tmp_path)
    with pytest.raises(LedgerError, match="cannot be locked"):
        open_writer(tmp_path / "nowhere")


def test_a_log_is_never_begun_twice(folder: Path) -> None:
    with pytest.raises(LedgerError, match="already"):
        begin_log(folder, SIGNER)
    (folder / "checkpoint").unlink()
    (folder / "tile").mkdir()
    with pytest.raises(LedgerError, match="already"):
        begin_log(folder, SIGNER)
    (folder.parent / "file").touch()
    with pytest.raises(LedgerError, match="No log can be made"):
        begin_log(folder.parent / "file", SIGNER)


def test_another_key_does_not_continue_a_log(folder: Path) -> None:
    with pytest.raises(CheckpointSignatureError):
        LedgerWriter(folder, NoteSigner(ORIGIN, bytes(32)), known=None)
    with open_writer(folder):
        pass


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    ["checkpoint", "tile/0/001.p/44", "tile/1/000.p/1", "tile/entries/001.p/44"],
)
def test_a_log_that_does_not_match_its_checkpoint_is_not_continued(
    tmp_path: Path, name: str
) -> None:
    make_log(tmp_path, 300)
    damage(tmp_path / name)
    with pytest.raises(VerificationError):
        open_writer(tmp_path)


def test_a_last_entry_that_is_another_one_is_not_continued(tmp_path: Path) -> None:
    make_log(tmp_path, 300)
    log = LogFolder(tmp_path)
    entries = [log.read_entry(index, size=300) for index in range(256, 300)]
    entries[3] = encode_entry(counted(999))
    (tmp_path / "tile/entries/001.p/44").write_bytes(pack_bundle(entries))
    with pytest.raises(VerificationError, match="Entry 259"):
        open_writer(tmp_path)


@pytest.mark.parametrize("name", ["tile/0/000", "tile/entries/000", "tile/entries/001.p/44"])
@pytest.mark.parametrize("how", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_log_that_lacks_a_file_is_not_continued(
    tmp_path: Path, name: str, how: Callable[[Path], object]
) -> None:
    make_log(tmp_path, 300)
    how(tmp_path / name)
    with pytest.raises(VerificationError, match="missing or cut"):
        open_writer(tmp_path)


def test_a_log_that_was_rolled_back_is_not_continued(tmp_path: Path) -> None:
    *_, old, new = make_log(tmp_path / "log", 10, 300)
    make_log(tmp_path / "other", 10)
    for known, folder in ((new, "other"), (Checkpoint("x", 0, bytes(32)), "log")):
        with pytest.raises(ForkError):
            LedgerWriter(tmp_path / folder, SIGNER, known=known)
    with pytest.raises(ForkError):
        LedgerWriter(tmp_path / "log", SIGNER, known=Checkpoint(ORIGIN, 10, bytes(32)))
    for known in (old, new, Checkpoint(ORIGIN, 0, open_writer(tmp_path / "log").checkpoint.root)):
        if known.size:
            with pytest.raises(LedgerBusyError):
                LedgerWriter(tmp_path / "log", SIGNER, known=known)


def test_a_known_checkpoint_that_the_log_continues_is_fine(tmp_path: Path) -> None:
    for known in make_log(tmp_path, 10, 300, 212, 5):
        LedgerWriter(tmp_path, SIGNER, known=known).close()


@pytest.mark.parametrize("extra", [1, 44, 255, 256, 257, 600])
def test_what_lies_beyond_the_checkpoint_is_cut_and_counted(tmp_path: Path, extra: int) -> None:
    make_log(tmp_path / "log", 300)
    shutil.copytree(tmp_path / "log", tmp_path / "ahead")
    appender = LogAppender(tmp_path / "ahead", SIGNER, known=None)
    appender.append([encode_entry(counted(1000 + number)) for number in range(extra)])
    appender.close()
    # As if the crash came right before the checkpoint was published.
    shutil.copy(tmp_path / "log" / "checkpoint", tmp_path / "ahead" / "checkpoint")
    shutil.copytree(tmp_path / "log" / "tile", tmp_path / "ahead" / "tile", dirs_exist_ok=True)
    with open_writer(tmp_path / "ahead", clock=lambda: 7) as writer:
        writer.append(counted(300))
    entries = entries_of(tmp_path / "ahead")
    cut = EntriesDropped(at_unix_ms=7, reason=DropReason.CUT_AFTER_CRASH, count=extra)
    assert entries == [*map(counted, range(300)), cut, counted(300)]


def test_torn_files_beyond_the_checkpoint_do_no_harm(tmp_path: Path) -> None:
    make_log(tmp_path, 300)
    for name in ("tile/entries/001.p/90", "tile/0/001.p/90", "tile/entries/x002/007"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\x00\xff torn")
    (tmp_path / "checkpoint.new").write_bytes(b"torn")
    with open_writer(tmp_path) as writer:
        writer.append(counted(300))
    assert entries_of(tmp_path) == [counted(number) for number in range(301)]


def test_an_entry_that_no_bundle_can_hold_is_refused(folder: Path) -> None:
    appender = LogAppender(folder, SIGNER, known=None)
    for wrong in (b"", bytes(65_536)):
        with pytest.raises(UsageError):
            appender.append([wrong])
    appender.close()


def test_a_new_key_continues_a_log_and_the_old_one_no_longer(folder: Path) -> None:
    new = NoteSigner(ORIGIN, bytes(32))
    with open_writer(folder) as writer:
        writer.append(counted(0))
    with pytest.raises(UsageError):
        rotate_key(folder, SIGNER, NoteSigner("other/name", bytes(32)), at_unix_ms=5)
    between = rotate_key(folder, SIGNER, new, at_unix_ms=5)
    note = LogFolder(folder).read_checkpoint()
    for signer in (SIGNER, new):
        assert open_checkpoint(note, [signer.verifier]) == between
    with LedgerWriter(folder, new, known=between) as writer:
        writer.append(counted(1))
    found = verify_log(folder, [new.verifier], between)
    entry = decode_entry(LogFolder(folder).read_entry(1, size=found.checkpoint.size))
    assert isinstance(entry, KeyRotated)
    with pytest.raises(CheckpointSignatureError):
        verify_log(folder, [SIGNER.verifier], None)
    with pytest.raises(CheckpointSignatureError):
        open_writer(folder)


def left_behind(tmp_path: Path) -> tuple[Path, Checkpoint]:
    """Return a log that signed a checkpoint whose rename a loss of power has taken back."""
    folder = tmp_path / "log"
    make_log(folder, 300)
    before = (folder / "checkpoint").read_bytes()
    appender = LogAppender(folder, SIGNER, known=None)
    signed = appender.append([encode_entry(counted(300 + number)) for number in range(7)])
    appender.close()
    (folder / "checkpoint").rename(folder / "checkpoint.new")
    (folder / "checkpoint").write_bytes(before)
    return folder, signed


def test_a_checkpoint_that_was_signed_and_may_have_been_seen_is_taken_up(tmp_path: Path) -> None:
    folder, signed = left_behind(tmp_path)
    with LedgerWriter(folder, SIGNER, known=signed) as writer:
        assert writer.checkpoint == signed
        assert not (folder / "checkpoint.new").exists()
        writer.append(counted(307))
    assert entries_of(folder) == [counted(number) for number in range(308)]


def test_what_a_signed_checkpoint_covers_has_to_be_there(tmp_path: Path) -> None:
    folder, _ = left_behind(tmp_path)
    (folder / "tile/entries/001.p/51").unlink()
    with pytest.raises(VerificationError):
        open_writer(folder)


def test_a_signed_checkpoint_of_another_history_is_not_taken_up(tmp_path: Path) -> None:
    folder, _ = left_behind(tmp_path)
    other = tmp_path / "other"
    begin_log(other, SIGNER)
    appender = LogAppender(other, SIGNER, known=None)
    appender.append([encode_entry(counted(1000 + number)) for number in range(300)])
    appender.close()
    (folder / "checkpoint").write_bytes((other / "checkpoint").read_bytes())
    with pytest.raises(ForkError):
        open_writer(folder)


@pytest.mark.parametrize("content", [b"", b"torn", "forged", "older"])
def test_an_unfinished_checkpoint_of_nobodys_is_passed_over(
    tmp_path: Path, content: bytes | str
) -> None:
    make_log(tmp_path, 300)
    if content == "forged":
        content = sign_checkpoint(Checkpoint(ORIGIN, 400, bytes(32)), NoteSigner(ORIGIN, bytes(32)))
    elif content == "older":
        content = sign_checkpoint(Checkpoint(ORIGIN, 299, bytes(32)), SIGNER)
    assert isinstance(content, bytes)
    (tmp_path / "checkpoint.new").write_bytes(content)
    with open_writer(tmp_path) as writer:
        assert writer.checkpoint.size == 300
        writer.append(counted(300))
    assert entries_of(tmp_path) == [counted(number) for number in range(301)]
