"""Merkle trees of RFC 6962: roots, inclusion proofs, consistency proofs. Pure.

A proof is a list of roots of ranges of leaves. Which ranges, `inclusion_ranges` and
`consistency_ranges` say, from sizes alone; where the roots come from is the caller's business: a
list of leaf hashes here, tiles on disk in `ledger.tiles`.

Source: RFC 6962, section 2.1; the loops that verify follow RFC 9162, sections 2.1.3.2 and 2.1.4.2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from kvward.errors import ConsistencyError, InclusionError, UsageError

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
"""Root of a tree without leaves."""

Range = tuple[int, int]
"""Leaves from the first number up to, not including, the second."""


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf, 32 bytes."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node, 32 bytes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def tree_root(leaf_hashes: Sequence[bytes]) -> bytes:
    """Return the root of a tree.

    Args:
        leaf_hashes: Any number of them, 32 bytes each. Roots of whole subtrees of one height may
            stand in for leaves, the last one's of any smaller tree: the root is the same.
    Cost:
        One hash for each leaf; a copy of the list.
    """
    if not leaf_hashes:
        return EMPTY_ROOT
    level, sha256 = list(leaf_hashes), hashlib.sha256
    while len(level) > 1:
        above = [
            sha256(b"\x01" + left + right).digest()
            for left, right in zip(level[::2], level[1::2], strict=False)
        ]
        # A last node without a sibling moves up as it is.
        if len(level) % 2:
            above.append(level[-1])
        level = above
    return level[0]


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """Return the ranges whose roots prove a leaf, from the leaf's sibling up to the root.

    Args:
        index: Of the leaf, from 0.
        size: Number of leaves of the tree; more than `index`.
    Raises:
        UsageError: There is no such leaf.
    """
    if not 0 <= index < size:
        raise UsageError(f"A tree of {size} leaves has no leaf {index}.")
    first, end = 0, size
    ranges: list[Range] = []
    while end - first > 1:
        middle = first + _left_width(end - first)
        if index < middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((first, middle))
            first = middle
    return ranges[::-1]


def consistency_ranges(old_size: int, new_size: int) -> list[Range]:
    """Return the ranges whose roots prove that a tree begins with an earlier one.

    Args:
        old_size: Leaves of the earlier tree. Zero and `new_size` need no proof: the list is empty.
        new_size: Leaves of the later tree.
    Raises:
        UsageError: The earlier tree would be the larger one.
    """
    if not 0 <= old_size <= new_size:
        raise UsageError(f"A tree of {new_size} leaves cannot begin with one of {old_size}.")
    if old_size in (0, new_size):
        return []
    first, end, is_whole = 0, new_size, True
    ranges: list[Range] = []
    while old_size != end:
        middle = first + _left_width(end - first)
        if old_size <= middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((first, middle))
            first, is_whole = middle, False
    # The old tree's own root is known to whoever asks, so it is left out where it would stand.
    if not is_whole:
        ranges.append((first, end))
    return ranges[::-1]


def inclusion_proof(leaf_hashes: Sequence[bytes], index: int, size: int) -> list[bytes]:
    """Prove that a leaf is in the tree of the first `size` leaves.

    Args:
        leaf_hashes: At least `size` of them.
    Returns:
        Hashes from the leaf's sibling upwards.
    Raises:
        UsageError: There is no such leaf, or fewer hashes than `size`.
    """
    _check_enough(leaf_hashes, size)
    return [tree_root(leaf_hashes[start:end]) for start, end in inclusion_ranges(index, size)]


def consistency_proof(leaf_hashes: Sequence[bytes], old_size: int, new_size: int) -> list[bytes]:
    """Prove that the tree of the first `new_size` leaves begins with that of the first `old_size`.

    Args:
        leaf_hashes: At least `new_size` of them.
    Returns:
        Hashes in the order of RFC 6962; empty when either tree needs none.
    Raises:
        UsageError: The earlier tree would be larger, or there are fewer hashes than `new_size`.
    """
    _check_enough(leaf_hashes, new_size)
    return [
        tree_root(leaf_hashes[start:end]) for start, end in consistency_ranges(old_size, new_size)
    ]


def verify_inclusion(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> None:
    """Check that a leaf stands at a place of a tree.

    Args:
        leaf: Hash of the leaf, from `leaf_hash`. 32 bytes.
        index: Its place, from 0. [untrusted]
        size: Leaves of the tree. [verified]
        proof: [untrusted]
        root: Root of the tree, 32 bytes. [verified]
    Raises:
        InclusionError: The proof does not show it.
    """
    if not 0 <= index < size:
        raise InclusionError(f"A tree of {size} leaves has no leaf {index}.")
    _check_hashes([leaf, root, *proof], InclusionError)
    place, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise InclusionError("The inclusion proof is longer than the tree is high.")
        if place % 2 or place == last:
            found = node_hash(sibling, found)
            # A last node without sibling has moved up to where it has one.
            while place % 2 == 0 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        place, last = place >> 1, last >> 1
    if last != 0 or found != root:
        raise InclusionError("The inclusion proof does not lead from the entry to the root.")


def verify_consistency(
    old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]
) -> None:
    """Check that a tree begins with an earlier one.

    Args:
        old_size, old_root: Of the earlier tree. [verified]
        new_size, new_root: Of the later tree. [verified]
        proof: [untrusted]
    Raises:
        ConsistencyError: The proof does not show it.
    """
    if not 0 <= old_size <= new_size:
        raise ConsistencyError(f"A tree of {new_size} leaves cannot begin with one of {old_size}.")
    _check_hashes([old_root, new_root, *proof], ConsistencyError)
    if old_size in (0, new_size):
        expected = EMPTY_ROOT if old_size == 0 else new_root
        if proof or old_root != expected or (new_size == 0 and new_root != EMPTY_ROOT):
            raise ConsistencyError("The two trees are not what their sizes say.")
        return
    # A whole old tree is itself the first hash, which the proof leaves out.
    path = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    place, last = old_size - 1, new_size - 1
    while place % 2:
        place, last = place >> 1, last >> 1
    if not path:
        raise ConsistencyError("The consistency proof is empty.")
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise ConsistencyError("The consistency proof is longer than the tree is high.")
        if place % 2 or place == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while place % 2 == 0 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        place, last = place >> 1, last >> 1
    if last != 0 or old != old_root or new != new_root:
        raise ConsistencyError("The consistency proof does not lead to both roots.")


class Frontier:
    """The right edge of a growing tree: all that its root and its growth need.

    Args:
        leaf_hashes: Those that are there already.
    """

    def __init__(self, leaf_hashes: Iterable[bytes] = ()) -> None:
        self._size = 0
        # Roots of whole subtrees, widest first: one for each bit that is set in the size.
        self._peaks: list[bytes] = []
        for hashed in leaf_hashes:
            self.append(hashed)

    @property
    def size(self) -> int:
        """Return the number of leaves."""
        return self._size

    def append(self, leaf_hash: bytes) -> None:
        """Let the tree grow by one leaf."""
        node, carry = leaf_hash, self._size
        while carry % 2:
            node = node_hash(self._peaks.pop(), node)
            carry >>= 1
        self._peaks.append(node)
        self._size += 1

    def root(self) -> bytes:
        """Return the root of all leaves so far."""
        if not self._peaks:
            return EMPTY_ROOT
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = node_hash(peak, root)
        return root


def _left_width(width: int) -> int:
    """Return the largest power of two below `width`, which is at least 2."""
    return 1 << ((width - 1).bit_length() - 1)


def _check_enough(leaf_hashes: Sequence[bytes], size: int) -> None:
    if size > len(leaf_hashes):
        raise UsageError(f"There are {len(leaf_hashes)} leaves, not {size}.")


def _check_hashes(hashes: Sequence[bytes], error: type[InclusionError | ConsistencyError]) -> None:
    if any(len(hashed) != HASH_BYTES for hashed in hashes):
        raise error("A hash of the proof does not have 32 bytes.")
