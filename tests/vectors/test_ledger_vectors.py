"""The vectors of the ledger, read as another implementation would read them."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import nacl.signing
import pytest

from kvward.errors import LedgerError
from kvward.ledger.checkpoint import open_checkpoint
from kvward.ledger.entry import decode_entry, encode_entry
from kvward.ledger.merkle import verify_consistency, verify_inclusion
from kvward.ledger.note import NoteSigner, NoteVerifier
from kvward.ledger.tiles import Tile, parse_bundle

FOLDER = Path(__file__).parents[2] / "vectors"
LEDGER = json.loads((FOLDER / "ledger-v1.json").read_text(encoding="utf-8"))
ENTRIES = [case["entry"].encode() for case in LEDGER["entries"]]
LEAVES = [hashlib.sha256(b"\x00" + entry).digest() for entry in ENTRIES]
ROOTS = [bytes.fromhex(case["root"]) for case in LEDGER["trees"]]
VERIFIER = NoteVerifier.from_text(LEDGER["key"]["verifier_key"])


def by_comment(case: dict[str, Any]) -> str:
    return str(case["comment"])


def root(leaves: list[bytes]) -> bytes:
    """The definition of RFC 6962."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256().digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + root(leaves[:k]) + root(leaves[k:])).digest()


@pytest.mark.parametrize("case", LEDGER["entries"], ids=by_comment)
def test_an_entry_is_read_and_written_as_its_vector_says(case: dict[str, Any]) -> None:
    data = case["entry"].encode()
    assert encode_entry(decode_entry(data)) == data
    assert json.dumps(json.loads(data), separators=(",", ":"), sort_keys=True).encode() == data
    assert hashlib.sha256(b"\x00" + data).hexdigest() == case["leaf_hash"]


@pytest.mark.parametrize("case", LEDGER["must_fail"], ids=by_comment)
def test_what_must_not_be_an_entry_is_none(case: dict[str, Any]) -> None:
    with pytest.raises(LedgerError):
        decode_entry(case["entry"].encode())


def test_vectors_that_must_fail_are_all_different() -> None:
    for name, field in (("must_fail", "entry"), ("notes_must_fail", "note")):
        texts = {case[field] for case in LEDGER[name]}
        assert len(texts) == len(LEDGER[name]) > 10
        assert not texts & {case["entry"] for case in LEDGER["entries"]}
        assert LEDGER["checkpoint"]["note"] not in texts


def test_roots_are_what_the_standard_defines() -> None:
    assert [root(LEAVES[:size]) for size in range(len(LEAVES) + 1)] == ROOTS


def test_proofs_verify() -> None:
    for case in LEDGER["inclusion"]:
        proof = [bytes.fromhex(hashed) for hashed in case["proof"]]
        verify_inclusion(
            LEAVES[case["index"]], case["index"], case["size"], proof, ROOTS[case["size"]]
        )
    for case in LEDGER["consistency"]:
        proof = [bytes.fromhex(hashed) for hashed in case["proof"]]
        old_size, size = case["old_size"], case["size"]
        verify_consistency(old_size, size, ROOTS[old_size], ROOTS[size], proof)


def test_bundles_and_paths() -> None:
    assert parse_bundle(bytes.fromhex(LEDGER["bundle"]), width=2) == ENTRIES[:2]
    for case in LEDGER["paths"]:
        assert Tile(case["level"], case["index"], case["width"]).path == case["path"]


def test_key_and_checkpoint_by_another_library() -> None:
    given = LEDGER["key"]
    seed = bytes.fromhex(given["seed"])
    public_key = bytes(nacl.signing.SigningKey(seed).verify_key)
    name, key_id, encoded = given["verifier_key"].split("+", 2)
    assert base64.b64decode(encoded) == b"\x01" + public_key
    hashed = hashlib.sha256(name.encode() + b"\n\x01" + public_key).hexdigest()
    assert hashed[:8] == key_id
    assert NoteSigner(name, seed).reveal() == given["private_key"]
    text, note = LEDGER["checkpoint"]["text"], LEDGER["checkpoint"]["note"]
    signed = base64.b64decode(note.splitlines()[-1].split(" ")[2])
    assert signed[:4].hex() == key_id
    nacl.signing.VerifyKey(public_key).verify(text.encode(), signed[4:])
    assert open_checkpoint(note.encode(), [VERIFIER]).root == ROOTS[-1]


@pytest.mark.parametrize("case", LEDGER["notes_must_fail"], ids=by_comment)
def test_what_must_not_verify_does_not(case: dict[str, Any]) -> None:
    with pytest.raises(LedgerError):
        open_checkpoint(case["note"].encode(), [VERIFIER])
