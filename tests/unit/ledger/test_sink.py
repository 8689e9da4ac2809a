"""From events to entries, and what a produced log never holds."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

from kvward.errors import KeyUnavailableError
from kvward.events import EventSink
from kvward.ledger.append import begin_log
from kvward.ledger.entry import EventsCounted, decode_entry
from kvward.ledger.keyfile import create_log_key, load_log_key
from kvward.ledger.names import CountedEvent, CountedReason
from kvward.ledger.sink import LedgerSink
from kvward.ledger.tiles import LogFolder
from kvward.ledger.verify import verify_log
from kvward.ledger.writer import LedgerWriter
from ledgers import ORIGIN, SIGNER


def entries_of(folder: Path) -> list[object]:
    found = verify_log(folder, [SIGNER.verifier], None)
    return [decode_entry(data) for data in LogFolder(folder).iter_entries(found.checkpoint.size)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    begin_log(tmp_path / "log", SIGNER)
    return tmp_path / "log"


def test_events_become_counts_by_name_and_reason(folder: Path) -> None:
    now = [1000]
    with (
        LedgerWriter(folder, SIGNER, known=None) as writer,
        LedgerSink(writer, window_s=3600, clock=lambda: now[0]) as sink,
    ):
        events: EventSink = sink
        for _ in range(3):
            events.emit("store.refused", reason="not-authentic")
        events.emit("store.refused", reason="length")
        events.emit("tier.dropped")
        events.emit("gateway.forwarded")
        now[0] = 61_000
        assert sink.write() == 3
        assert sink.write() == 0
        events.emit("gateway.refused", reason="404")
        now[0] = 62_000
    assert entries_of(folder) == [
        EventsCounted(at_unix_ms=61_000, name=name, reason=reason, count=count, window_ms=60_000)
        for name, reason, count in (
            (CountedEvent.STORE_REFUSED, CountedReason.NOT_AUTHENTIC, 3),
            (CountedEvent.STORE_REFUSED, CountedReason.LENGTH, 1),
            (CountedEvent.TIER_DROPPED, None, 1),
        )
    ] + [
        EventsCounted(
            at_unix_ms=62_000,
            name=CountedEvent.GATEWAY_REFUSED,
            reason=CountedReason.HTTP_404,
            count=1,
            window_ms=1000,
        )
    ]


def test_windows_end_by_themselves(folder: Path) -> None:
    with LedgerWriter(folder, SIGNER, known=None, linger_s=0) as writer:
        sink = LedgerSink(writer, window_s=0.01)
        sink.emit("store.refused", reason="length")
        deadline = time.monotonic() + 20
        while writer.checkpoint.size == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert writer.checkpoint.size == 1
        sink.close()


def test_a_clock_that_goes_back_gives_an_empty_window(folder: Path) -> None:
    now = [1000]
    with (
        LedgerWriter(folder, SIGNER, known=None) as writer,
        LedgerSink(writer, window_s=3600, clock=lambda: now[0]) as sink,
    ):
        sink.emit("tier.dropped")
        now[0] = 10
    (entry,) = entries_of(folder)
    assert isinstance(entry, EventsCounted)
    assert (entry.at_unix_ms, entry.window_ms) == (10, 0)


PROMPT = "Dear bank, my PIN is 4711"
TENANT = "acme-holding"
KEY = bytes(range(200, 232))


def test_a_log_holds_no_prompt_no_key_and_no_tenant(folder: Path) -> None:
    with (
        LedgerWriter(folder, SIGNER, known=None) as writer,
        LedgerSink(writer, window_s=3600) as sink,
    ):
        # What a careless caller might send.
        sink.emit("store.refused", reason=PROMPT)
        sink.emit("gateway.refused", reason=TENANT, tenant=TENANT, prompt=PROMPT)
        sink.emit(TENANT, reason=KEY.hex())
        sink.emit(PROMPT, key=base64.b64encode(KEY).decode())
        sink.emit("vllm.uncacheable", reason="an adapter whose content is not known")
    secrets = [
        PROMPT.encode(),
        PROMPT.encode().hex().encode(),
        TENANT.encode(),
        KEY,
        KEY.hex().encode(),
        base64.b64encode(KEY),
        SIGNER.reveal().encode(),
        bytes(range(32)).hex().encode(),
        bytes(range(32)),
        b"adapter whose",
    ]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 4
    for path in files:
        held = str(path.relative_to(folder)).encode() + path.read_bytes()
        for secret in secrets:
            assert secret not in held, path
    assert sum(entry.count for entry in entries_of(folder)) == 5  # type: ignore[attr-defined]


def test_a_key_file_is_private_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "log.key"
    signer = create_log_key(path, origin=ORIGIN)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_log_key(path).matches(signer)
    with pytest.raises(KeyUnavailableError, match="never overwritten"):
        create_log_key(path, origin=ORIGIN)
    with pytest.raises(KeyUnavailableError, match="cannot be created"):
        create_log_key(tmp_path / "nowhere" / "key", origin=ORIGIN)
    path.chmod(0o640)
    with pytest.raises(KeyUnavailableError, match="group or others"):
        load_log_key(path)
    path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(path)
    for wrong in (link, tmp_path / "nothing", tmp_path):
        with pytest.raises(KeyUnavailableError):
            load_log_key(wrong)
    for content in (b"", b"\xff", b"PRIVATE+KEY+x", path.read_bytes() * 2):
        path.write_bytes(content)
        with pytest.raises(KeyUnavailableError, match="does not hold") as caught:
            load_log_key(path)
        assert "PRIVATE" not in str(caught.value)
