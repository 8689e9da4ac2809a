"""Trees and entries, with values that hypothesis looks for."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import VerificationError
from kvward.ledger.checkpoint import Checkpoint, parse_checkpoint
from kvward.ledger.entry import decode_entry, encode_entry
from kvward.ledger.merkle import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from kvward.ledger.note import NoteSigner, open_note, parse_unverified_note, sign_note
from kvward.ledger.tiles import Edge, Tile, pack_bundle, parse_bundle, parse_path
from ledgers import draw_entry

SIGNER = NoteSigner("log/one", bytes(range(32)))
LEAVES = st.lists(st.binary(max_size=8).map(leaf_hash), min_size=1, max_size=80)


@given(LEAVES)
def test_all_ways_to_a_root_agree(leaves: list[bytes]) -> None:
    frontier, edge = Frontier(), Edge()
    for leaf in leaves:
        frontier.append(leaf)
        list(edge.grow([leaf]))
    assert frontier.root() == edge.root() == tree_root(leaves)


@given(LEAVES, st.data())
def test_every_proof_verifies_and_proves_nothing_else(leaves: list[bytes], data: Any) -> None:
    size = data.draw(st.integers(1, len(leaves)))
    index, old_size = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size))
    root, proof = tree_root(leaves[:size]), inclusion_proof(leaves, index, size)
    verify_inclusion(leaves[index], index, size, proof, root)
    verify_consistency(
        old_size,
        size,
        tree_root(leaves[:old_size]),
        root,
        consistency_proof(leaves, old_size, size),
    )
    other = data.draw(st.integers(0, size - 1))
    if leaves[other] != leaves[index]:
        with pytest.raises(VerificationError):
            verify_inclusion(leaves[other], index, size, proof, root)


@given(LEAVES, LEAVES, st.data())
def test_no_proof_leads_from_one_history_to_another(
    ours: list[bytes], theirs: list[bytes], data: Any
) -> None:
    old_size = data.draw(st.integers(1, len(ours)))
    if len(theirs) < old_size or theirs[:old_size] == ours[:old_size]:
        return
    proof = consistency_proof(theirs, old_size, len(theirs))
    with pytest.raises(VerificationError):
        verify_consistency(
            old_size, len(theirs), tree_root(ours[:old_size]), tree_root(theirs), proof
        )


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_entries_are_equal_exactly_when_their_bytes_are(one: int, two: int) -> None:
    first, second = draw_entry(random.Random(one)), draw_entry(random.Random(two))
    assert decode_entry(encode_entry(first)) == first
    assert (encode_entry(first) == encode_entry(second)) == (first == second)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    )
)
def test_no_other_json_is_an_entry(value: Any) -> None:
    with pytest.raises(VerificationError):
        decode_entry(json.dumps(value).encode())


@given(st.integers(0, 2**64), st.sampled_from(["at_unix_ms", "count", "epoch"]), st.data())
def test_no_field_takes_text(seed: int, name: str, data: Any) -> None:
    value = json.loads(encode_entry(draw_entry(random.Random(seed))))
    name = data.draw(st.sampled_from(sorted(value)))
    value[name] = data.draw(st.text(max_size=80).filter(lambda text: text != value[name]))
    spelled = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    try:
        found = decode_entry(spelled.encode("utf-8", "surrogatepass"))
    except VerificationError:
        return
    # A word of the same list, and nothing else.
    assert encode_entry(found) == spelled.encode()
    assert len(value[name]) < 30


@given(st.binary())
def test_any_bytes_are_an_entry_or_an_error(data: bytes) -> None:
    with pytest.raises(VerificationError):
        decode_entry(data)


TEXTS = st.text(
    st.characters(min_codepoint=32, exclude_categories=["Cs"]) | st.just("\n"), max_size=60
).map(lambda text: text + "\n")


@given(TEXTS)
def test_any_text_comes_back_from_its_note(text: str) -> None:
    note = sign_note(text, SIGNER)
    assert open_note(note, [SIGNER.verifier]) == text
    assert parse_unverified_note(note)[0] == text


@given(st.binary() | TEXTS.map(str.encode))
def test_any_bytes_are_refused_as_a_note(data: bytes) -> None:
    with pytest.raises(VerificationError):
        open_note(data, [SIGNER.verifier])


@given(st.integers(0, 2**53 - 1), st.binary(min_size=32, max_size=32))
def test_checkpoints_come_back(size: int, root: bytes) -> None:
    checkpoint = Checkpoint("log/one", size, root)
    assert parse_checkpoint(checkpoint.text()) == checkpoint


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bundles_come_back(entries: list[bytes]) -> None:
    assert parse_bundle(pack_bundle(entries), width=len(entries)) == entries


@given(st.none() | st.integers(0, 63), st.integers(0, 2**53), st.integers(1, 256))
def test_paths_come_back(level: int | None, index: int, width: int) -> None:
    tile = Tile(level, index, width)
    assert parse_path(tile.path) == tile
