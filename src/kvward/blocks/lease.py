"""Leases: who holds which block of an engine's memory, for whom, and whether it is written.

Failures of engines are refused by construction. A block found under another scope (K-SCOPE), a
block handed out again while somebody still reads it (L-INFLIGHT), a block read before all its
layers are written (L-EARLY), and a block that an index names for what it does not hold (L-ALLOC)
all have a lease that does not match the reader's.
Pure bookkeeping, not thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Refusal(StrEnum):
    """Why a block may not be read."""

    OTHER_SCOPE = "other-scope"
    OTHER_CONTENT = "other-content"
    LEASE_ENDED = "lease-ended"
    NOT_COMMITTED = "not-committed"


@dataclass(slots=True, kw_only=True)
class _Lease:
    scope: str
    generation: int
    name: bytes | None  # of the content, once all of it is written


class BlockLeases:
    """All leases of one block pool. Generations rise over the whole pool and never come back."""

    def __init__(self) -> None:
        self._leases: dict[int, _Lease] = {}
        self._last_generation = 0

    def grant(self, block_id: int, *, scope: str) -> int:
        """Lease a block to a scope for writing; every earlier lease of it ends.

        Returns:
            The generation of the new lease, above all earlier ones.
        """
        self._last_generation += 1
        self._leases[block_id] = _Lease(scope=scope, generation=self._last_generation, name=None)
        return self._last_generation

    def commit(self, block_id: int, *, generation: int, name: bytes) -> bool:
        """Say that all layers of a block are written, and with what.

        Args:
            name: Hash of the block's whole prefix.
        Returns:
            False when the lease has ended: then what was written is another holder's trouble,
            and nothing becomes readable.
        """
        lease = self._leases.get(block_id)
        if lease is None or lease.generation != generation:
            return False
        lease.name = name
        return True

    def check_reuse(self, block_id: int, *, scope: str, name: bytes) -> int | Refusal:
        """Return the generation under which a reader may reuse a block, or why it may not.

        Args:
            scope: The reader's.
            name: Hash of the prefix that the reader looks for.
        """
        lease = self._leases.get(block_id)
        if lease is None:
            return Refusal.LEASE_ENDED
        if lease.scope != scope:
            return Refusal.OTHER_SCOPE
        if lease.name is None:
            return Refusal.NOT_COMMITTED
        return lease.generation if lease.name == name else Refusal.OTHER_CONTENT

    def written_for(self, block_id: int, *, name: bytes) -> str | None:
        """Return the scope for which a block holds the content `name`; None if it does not."""
        lease = self._leases.get(block_id)
        return lease.scope if lease is not None and lease.name == name else None

    def check_holding(
        self, block_ids: Sequence[int], generations: Sequence[int], *, scope: str
    ) -> Refusal | None:
        """Return why a running reader may not go on with its blocks, or None if it may.

        Args:
            generations: The generation relied on for each of `block_ids`.
        """
        leases = self._leases
        for block_id, generation in zip(block_ids, generations, strict=True):
            lease = leases.get(block_id)
            if lease is None or lease.generation != generation:
                return Refusal.LEASE_ENDED
            if lease.scope != scope:
                return Refusal.OTHER_SCOPE
        return None
