"""The host tier: content of evicted blocks, by the hash of their prefix."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kvward.lab.interface import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """Content of a block, (layers, 2, block_tokens, kv_heads, head_dim), and whose it is.

    The owner is None in an engine without a ward: nobody kept account.
    """

    content: FloatArray
    owner: str | None


class HostTier:
    """Keeps copies of the last evicted blocks, longest-unused ones dropped first.

    Args:
        num_blocks: Capacity; 0 keeps nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        self._capacity = num_blocks
        self._entries: OrderedDict[bytes, HostEntry] = OrderedDict()

    def store(self, block_hash: bytes, content: FloatArray, *, owner: str | None) -> None:
        """Keep a copy of a block."""
        if self._capacity == 0:
            return
        self._entries[block_hash] = HostEntry(content=content.copy(), owner=owner)
        self._entries.move_to_end(block_hash)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def fetch(self, block_hash: bytes) -> HostEntry | None:
        """Return what is kept under a hash, or None; it stays kept."""
        entry = self._entries.get(block_hash)
        if entry is not None:
            self._entries.move_to_end(block_hash)
        return entry

    def __len__(self) -> int:
        return len(self._entries)
