"""The host tier: content of evicted blocks, by the hash of their prefix."""

from __future__ import annotations

from collections import OrderedDict

from kvward.lab.interface import FloatArray


class HostTier:
    """Keeps copies of the last evicted blocks, longest-unused ones dropped first.

    Args:
        num_blocks: Capacity; 0 keeps nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        self._capacity = num_blocks
        self._contents: OrderedDict[bytes, FloatArray] = OrderedDict()

    def store(self, block_hash: bytes, content: FloatArray) -> None:
        """Keep a copy of a block, shape (layers, 2, block_tokens, kv_heads, head_dim)."""
        if self._capacity == 0:
            return
        self._contents[block_hash] = content.copy()
        self._contents.move_to_end(block_hash)
        if len(self._contents) > self._capacity:
            self._contents.popitem(last=False)

    def fetch(self, block_hash: bytes) -> FloatArray | None:
        """Return the content kept under a hash, or None; it stays kept."""
        content = self._contents.get(block_hash)
        if content is not None:
            self._contents.move_to_end(block_hash)
        return content

    def __len__(self) -> int:
        return len(self._contents)
