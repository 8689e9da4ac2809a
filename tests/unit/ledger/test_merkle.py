"""Trees and proofs against the definition of RFC 6962, written out, and against another library."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import pytest
from benchmarks.ledger_agreement import compare_log

from kvward.errors import ConsistencyError, InclusionError, UsageError
from kvward.ledger.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    tree_root,
    verify_consistency,
    verify_inclusion,
)

LEAVES = [leaf_hash(bytes([number])) for number in range(70)]
MOST = 40


def split(size: int) -> int:
    width = 1
    while width * 2 < size:
        width *= 2
    return width


def defined_root(data: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1."""
    if not data:
        return hashlib.sha256().digest()
    if len(data) == 1:
        return hashlib.sha256(b"\x00" + data[0]).digest()
    k = split(len(data))
    return hashlib.sha256(b"\x01" + defined_root(data[:k]) + defined_root(data[k:])).digest()


def defined_path(m: int, data: Sequence[bytes]) -> list[bytes]:
    """PATH of RFC 6962, section 2.1.1."""
    if len(data) == 1:
        return []
    k = split(len(data))
    if m < k:
        return [*defined_path(m, data[:k]), defined_root(data[k:])]
    return [*defined_path(m - k, data[k:]), defined_root(data[:k])]


def defined_subproof(m: int, data: Sequence[bytes], is_whole: bool) -> list[bytes]:
    """SUBPROOF of RFC 6962, section 2.1.2."""
    if m == len(data):
        return [] if is_whole else [defined_root(data)]
    k = split(len(data))
    if m <= k:
        return [*defined_subproof(m, data[:k], is_whole), defined_root(data[k:])]
    return [*defined_subproof(m - k, data[k:], False), defined_root(data[:k])]


DATA = [bytes([number]) for number in range(MOST)]


@pytest.mark.parametrize("size", range(MOST + 1))
def test_root_and_frontier_are_what_the_standard_defines(size: int) -> None:
    root = defined_root(DATA[:size])
    frontier = Frontier(LEAVES[:size])
    assert tree_root(LEAVES[:size]) == frontier.root() == root
    assert frontier.size == size


@pytest.mark.parametrize("size", range(1, MOST + 1))
def test_proofs_are_what_the_standard_defines_and_verify(size: int) -> None:
    root = tree_root(LEAVES[:size])
    for index in range(size):
        proof = inclusion_proof(LEAVES, index, size)
        assert proof == defined_path(index, DATA[:size])
        verify_inclusion(LEAVES[index], index, size, proof, root)
    for old_size in range(1, size + 1):
        proof = consistency_proof(LEAVES, old_size, size)
        assert proof == defined_subproof(old_size, DATA[:size], True)
        verify_consistency(old_size, size, tree_root(LEAVES[:old_size]), root, proof)


def test_a_tree_without_leaves_is_the_beginning_of_every_tree() -> None:
    verify_consistency(0, 0, EMPTY_ROOT, EMPTY_ROOT, [])
    verify_consistency(0, 5, EMPTY_ROOT, tree_root(LEAVES[:5]), [])
    for old_root, new_root, size, proof in (
        (LEAVES[0], LEAVES[1], 5, []),
        (EMPTY_ROOT, LEAVES[0], 0, []),
        (EMPTY_ROOT, tree_root(LEAVES[:5]), 5, [LEAVES[0]]),
    ):
        with pytest.raises(ConsistencyError):
            verify_consistency(0, size, old_root, new_root, proof)


def wrong_proofs(proof: list[bytes]) -> list[list[bytes]]:
    """Every proof that differs a little."""
    changed = [
        [*proof[:place], bytes([hashed[0] ^ 1]) + hashed[1:], *proof[place + 1 :]]
        for place, hashed in enumerate(proof)
    ]
    cut = [proof[:place] + proof[place + 1 :] for place in range(len(proof))]
    longer = [[*proof, LEAVES[0]], [LEAVES[0], *proof]]
    turned = [proof[::-1]] if proof != proof[::-1] else []
    short = [[hashed[:31]] for hashed in proof[:1]]
    empty: list[list[bytes]] = [[]] if proof else []
    return changed + cut + longer + turned + short + empty


@pytest.mark.parametrize("size", range(1, 20))
def test_no_other_inclusion_proof_verifies(size: int) -> None:
    root = tree_root(LEAVES[:size])
    for index in range(size):
        proof = inclusion_proof(LEAVES, index, size)
        for wrong in wrong_proofs(proof):
            with pytest.raises(InclusionError):
                verify_inclusion(LEAVES[index], index, size, wrong, root)
        for other in {0, size - 1, size, -1, index + 1} - {index}:
            with pytest.raises(InclusionError):
                verify_inclusion(LEAVES[index], other, size, proof, root)
        with pytest.raises(InclusionError):
            verify_inclusion(LEAVES[index + 1], index, size, proof, root)
        with pytest.raises(InclusionError):
            verify_inclusion(LEAVES[index], index, size, proof, LEAVES[50])


@pytest.mark.parametrize("size", range(1, 20))
def test_no_other_consistency_proof_verifies(size: int) -> None:
    root = tree_root(LEAVES[:size])
    for old_size in range(1, size + 1):
        old_root, proof = tree_root(LEAVES[:old_size]), consistency_proof(LEAVES, old_size, size)
        for wrong in wrong_proofs(proof):
            with pytest.raises(ConsistencyError):
                verify_consistency(old_size, size, old_root, root, wrong)
        for roots in ((LEAVES[50], root), (old_root, LEAVES[50])):
            with pytest.raises(ConsistencyError):
                verify_consistency(old_size, size, *roots, proof)
        with pytest.raises(ConsistencyError):
            verify_consistency(size, old_size - 1, old_root, root, proof)


def test_what_no_tree_has_cannot_be_proved() -> None:
    for index, size in ((5, 5), (-1, 5), (0, 0), (0, 71)):
        with pytest.raises(UsageError):
            inclusion_proof(LEAVES, index, size)
    for old_size, size in ((6, 5), (-1, 5), (1, 71)):
        with pytest.raises(UsageError):
            consistency_proof(LEAVES, old_size, size)


def test_a_leaf_is_never_a_node() -> None:
    left, right = LEAVES[:2]
    assert leaf_hash(left + right) != node_hash(left, right)


@pytest.mark.parametrize("seed", range(300))
def test_another_library_agrees_on_heads_and_proofs(seed: int) -> None:
    assert compare_log(random.Random(seed)).disagreements == []
