"""The host tier: content of evicted blocks, by the hash of their prefix."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from kvward.lab.behaviour import SOUND, Behaviour, Slip
from kvward.lab.interface import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """Content of a block, (layers, 2, block_tokens, kv_heads, head_dim), and whose it is.

    Attributes:
        content: Valid until the tier is written to again.
        owner: None in an engine without a ward: nobody kept account.
        scopes: Of the requests that wrote or reused it.
        is_loaded: Whether the content has come; always, in a sound tier.
        checksum: Of the content that was to be written.
    """

    content: FloatArray
    owner: str | None
    scopes: frozenset[str | None]
    is_loaded: bool
    checksum: int


class HostTier:
    """Keeps copies of the last evicted blocks, longest-unused ones dropped first.

    Buffers are used again, as pinned memory is: what a write does not reach keeps the bytes of
    the entry that was there before. An entry whose write or read failed is a miss.

    Args:
        num_blocks: Capacity; 0 keeps nothing.
        fault_rate: Probability that a write stops halfway, and that a read brings nothing.
    """

    def __init__(
        self, num_blocks: int, *, fault_rate: float = 0.0, behaviour: Behaviour = SOUND
    ) -> None:
        self._capacity = num_blocks
        self._fault_rate = fault_rate
        self._behaviour = behaviour
        self._random = Random("host-faults")  # noqa: S311 - repeatable
        self._entries: OrderedDict[bytes, HostEntry] = OrderedDict()
        self._unused: list[FloatArray] = []

    def store(
        self,
        block_hash: bytes,
        content: FloatArray,
        *,
        owner: str | None,
        scopes: frozenset[str | None] = frozenset(),
    ) -> None:
        """Keep a copy of a block."""
        if self._capacity == 0:
            return
        self.drop(block_hash)
        if len(self._entries) == self._capacity:
            self.drop(next(iter(self._entries)))
        buffer = self._unused.pop() if self._unused else np.zeros_like(content)
        written = len(content) // 2 if self._has_fault() else len(content)
        buffer[:written] = content[:written]
        self._entries[block_hash] = HostEntry(
            content=buffer,
            owner=owner,
            scopes=scopes,
            is_loaded=True,
            checksum=zlib.crc32(np.ascontiguousarray(content).data),
        )

    def fetch(self, block_hash: bytes) -> HostEntry | None:
        """Return what is kept under a hash, or None; it stays kept."""
        entry = self._entries.get(block_hash)
        if entry is None:
            return None
        if self._has_fault():
            if not self._behaviour.slips(Slip.FAILED_LOAD_SERVED):
                return None
            return HostEntry(
                content=entry.content,
                owner=entry.owner,
                scopes=entry.scopes,
                is_loaded=False,
                checksum=entry.checksum,
            )
        is_whole = zlib.crc32(entry.content.data) == entry.checksum
        if not is_whole and not self._behaviour.slips(Slip.TORN_WRITE_SERVED):
            self.drop(block_hash)
            return None
        self._entries.move_to_end(block_hash)
        return entry

    def drop(self, block_hash: bytes) -> None:
        """Forget an entry; one that is not there is ignored."""
        entry = self._entries.pop(block_hash, None)
        if entry is not None:
            self._unused.append(entry.content)

    def drop_where(self, condition: Callable[[HostEntry], bool]) -> int:
        """Forget and overwrite what meets a condition; returns how many entries those were."""
        names = [name for name, entry in self._entries.items() if condition(entry)]
        for name in names:
            self._entries[name].content[...] = 0
            self.drop(name)
        return len(names)

    def __len__(self) -> int:
        return len(self._entries)

    def _has_fault(self) -> bool:
        return self._fault_rate > 0 and self._random.random() < self._fault_rate
