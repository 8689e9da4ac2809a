"""Entries: one spelling, strict types, no room for words that are not listed."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from kvward.errors import VerificationError
from kvward.ledger.entry import (
    MAX_ENTRY_BYTES,
    Entry,
    EpochBegun,
    EventsCounted,
    PolicyChanged,
    decode_entry,
    encode_entry,
    kind_of,
)
from kvward.ledger.names import CountedEvent, CountedReason
from kvward.ledger.sink import ORDINARY
from ledgers import counted, digest_of, draw_entry

SOURCE = Path(__file__).parents[3] / "src" / "kvward"
DIGEST = digest_of(1)
GOOD: dict[str, Any] = {
    "at_unix_ms": 3,
    "count": 1,
    "kind": "count",
    "name": "store.refused",
    "reason": None,
    "window_ms": 9,
}


def spelled(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@pytest.mark.parametrize("seed", range(200))
def test_an_entry_comes_back_and_is_spelled_as_the_standard_library_would(seed: int) -> None:
    entry = draw_entry(random.Random(seed))
    data = encode_entry(entry)
    assert decode_entry(data) == entry
    assert spelled(json.loads(data)) == data
    assert len(data) < 600 < MAX_ENTRY_BYTES


def test_kinds_are_different_and_all_are_drawn() -> None:
    kinds = {kind_of(draw_entry(random.Random(seed))) for seed in range(200)}
    assert kinds == {kind.__struct_config__.tag for kind in get_args(Entry)}
    assert len(kinds) == len(get_args(Entry)) == 10


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"kind": None},
        {"at_unix_ms": -1},
        {"at_unix_ms": 2**53},
        {"at_unix_ms": "3"},
        {"at_unix_ms": True},
        {"at_unix_ms": 3.5},
        {"count": 0},
        {"count": None},
        {"name": "acme refused"},
        {"name": "store.refused "},
        {"name": None},
        {"reason": "acme"},
        {"reason": ""},
        {"note": "x"},
        {"tenant": "acme"},
    ],
)
def test_what_is_no_entry_is_refused_and_not_repeated(change: dict[str, Any]) -> None:
    assert decode_entry(spelled(GOOD))
    with pytest.raises(VerificationError) as caught:
        decode_entry(spelled(GOOD | change))
    assert "acme" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", sorted(GOOD))
def test_every_field_has_to_be_there(name: str) -> None:
    with pytest.raises(VerificationError):
        decode_entry(spelled({key: value for key, value in GOOD.items() if key != name}))


@pytest.mark.parametrize(
    "data",
    [
        spelled(GOOD) + b"\n",
        b" " + spelled(GOOD),
        json.dumps(GOOD, sort_keys=True).encode(),
        json.dumps(dict(reversed(GOOD.items())), separators=(",", ":")).encode(),
        spelled(GOOD).replace(b"store", b"\\u0073tore"),
        spelled(GOOD).replace(b'"count":1', b'"count":1.0'),
        spelled(GOOD).replace(b'"count":1', b'"count":1e0'),
        spelled(GOOD).replace(b'"count":1', b'"count":1,"count":1'),
        spelled(GOOD).replace(b'"count":1', b'"count":2,"count":1'),
        spelled(GOOD) * 2,
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_there_is_one_spelling(data: bytes) -> None:
    with pytest.raises(VerificationError):
        decode_entry(data)


@pytest.mark.parametrize("change", range(256))
def test_no_changed_byte_gives_the_same_entry(change: int) -> None:
    data = bytearray(encode_entry(counted(5)))
    place = change % len(data)
    data[place] = change
    try:
        found = decode_entry(bytes(data))
    except VerificationError:
        return
    assert encode_entry(found) == bytes(data)


@pytest.mark.parametrize(
    "wrong",
    [
        "acme",
        "",
        "A" * 64,
        DIGEST + "\n",
        DIGEST[:-1],
        DIGEST.encode(),
        None,
        7,
        "write a letter to my bank" + DIGEST[:39],
    ],
)
def test_a_digest_cannot_be_anything_else(wrong: Any) -> None:
    with pytest.raises(ValueError, match="policy_digest") as caught:
        PolicyChanged(at_unix_ms=1, policy_digest=wrong)
    assert "acme" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["acme", DIGEST, "", 7])
def test_a_pseudonym_cannot_be_anything_else(wrong: Any) -> None:
    good = DIGEST[:48]
    fields = {"at_unix_ms": 1, "tenant_id": good, "scope_id": good, "epoch": 0}
    assert EpochBegun(at_unix_ms=1, tenant_id=good, scope_id=None, epoch=0)
    for names in ({"tenant_id": wrong}, {"scope_id": wrong}, {"tenant_id": None}):
        with pytest.raises(ValueError, match="_id"):
            EpochBegun(**(fields | names))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "store.refused"},
        {"reason": "401"},
        {"reason": CountedEvent.OTHER},
        {"count": 0},
        {"count": True},
        {"count": 1.0},
        {"window_ms": -1},
        {"at_unix_ms": 2**53},
    ],
)
def test_words_and_numbers_have_their_type_and_range(change: dict[str, Any]) -> None:
    fields = {"at_unix_ms": 1, "name": CountedEvent.OTHER, "reason": None, "count": 1}
    with pytest.raises(ValueError, match="does not hold"):
        EventsCounted(**(fields | {"window_ms": 0} | change))


def test_an_entry_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        counted(1).count = 7  # type: ignore[misc]
    with pytest.raises(ValueError, match="does not hold"):
        msgspec.structs.replace(counted(1), name="acme")


def test_every_event_that_is_emitted_is_known_to_the_ledger() -> None:
    emitted = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r'\bemit\(\s*"([a-z.-]+)"', path.read_text(encoding="utf-8"))
    }
    assert len(emitted) > 25
    known = {event.value for event in CountedEvent}
    assert emitted <= known | ORDINARY
    assert known - {"other"} <= emitted
    assert not known & ORDINARY


def test_reasons_of_enumerations_are_known_to_the_ledger() -> None:
    from kvward.blocks.lease import Refusal
    from kvward.seal import OpenRefusal

    known = {reason.value for reason in CountedReason}
    assert {refusal.value for refusal in (*Refusal, *OpenRefusal)} <= known
