"""The prefix index: from the hash of a block's whole prefix to the block that holds it."""

from __future__ import annotations


class PrefixIndex:
    """A one-to-one map between block hashes and blocks."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    def find(self, block_hash: bytes) -> int | None:
        """Return the block that holds a prefix, or None."""
        return self._blocks.get(block_hash)

    def hash_of(self, block: int) -> bytes | None:
        """Return the hash under which a block can be found, or None."""
        return self._hashes.get(block)

    def insert(self, block_hash: bytes, block: int) -> bool:
        """Make a block findable; False, and nothing done, when its prefix is findable already."""
        if block_hash in self._blocks:
            return False
        self._blocks[block_hash] = block
        self._hashes[block] = block_hash
        return True

    def remove(self, block: int) -> None:
        """Forget a block; one that is not in the index is ignored."""
        block_hash = self._hashes.pop(block, None)
        if block_hash is not None:
            del self._blocks[block_hash]

    def __len__(self) -> int:
        return len(self._blocks)
