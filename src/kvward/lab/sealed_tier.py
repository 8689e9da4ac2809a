"""The engine's tier outside its own memory: blocks sealed under their scope, in a sealed store.

Loading happens in the engine's thread, where the answer is waited for; saving happens in a thread
of its own, on copies, and is given up when it falls behind.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np

from kvward.blocks.layout import BlockLayout
from kvward.events import EventSink
from kvward.lab.interface import FloatArray, LlamaConfig
from kvward.scope.owner import ScopeOwner
from kvward.store import SealedStore

_MAX_PENDING_BLOCKS = 256  # of each tenant: nobody's load keeps another's state from being kept
_SAVED_AT_ONCE = 64


def block_layout(config: LlamaConfig, *, block_tokens: int) -> BlockLayout:
    """Return how the engine's blocks lie in memory."""
    return BlockLayout(
        order="layer,plane,token,head,channel",
        dtype="float32",
        block_tokens=block_tokens,
        num_planes=2,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        tensor_ranks=1,
        layers_of_stage=(config.num_layers,),
        num_kv_groups=1,
    )


class SealedTier:
    """Blocks of all scopes; each request sees its own through `scope`.

    Args:
        store: Takes blocks of `layout`.
        events: Takes "tier.dropped" for each block that was given up.
    """

    def __init__(self, store: SealedStore, layout: BlockLayout, *, events: EventSink) -> None:
        self._store = store
        self._layout = layout
        self._events = events
        self._pending: queue.Queue[tuple[ScopeOwner, bytes, bytes] | None] = queue.Queue()
        self._pending_of: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write, name="sealed-tier", daemon=True)
        self._thread.start()

    def scope(self, owner: ScopeOwner) -> ScopedTier:
        """Return the tier as one scope sees it."""
        return ScopedTier(self, owner)

    def load(self, owner: ScopeOwner, names: Sequence[bytes]) -> list[FloatArray | None]:
        """Return the content of each block, None where it is not there or did not open."""
        block_bytes = self._layout.block_bytes
        staging = memoryview(bytearray(len(names) * block_bytes))
        loaded = self._store.scope(owner).load(names, staging, parts=self._layout.parts)
        return [
            np.frombuffer(staging[place * block_bytes : (place + 1) * block_bytes], np.float32)
            if there
            else None
            for place, there in enumerate(loaded)
        ]

    def save(self, owner: ScopeOwner, name: bytes, content: FloatArray) -> None:
        """Keep a copy of a block, soon."""
        with self._lock:
            fits = self._pending_of[owner.tenant_id] < _MAX_PENDING_BLOCKS
            self._pending_of[owner.tenant_id] += fits
        if fits:
            self._pending.put((owner, name, content.tobytes()))
        else:
            self._events.emit("tier.dropped")

    def close(self) -> None:
        """Save what is pending, and end."""
        self._pending.put(None)
        self._thread.join()

    def flush(self) -> None:
        """Wait until everything that was given so far is saved."""
        self._pending.join()

    def _write(self) -> None:
        ended = False
        while not ended:
            taken = [self._pending.get()]
            while len(taken) < _SAVED_AT_ONCE and not self._pending.empty():
                taken.append(self._pending.get())
            by_owner: dict[ScopeOwner, list[tuple[bytes, bytes]]] = {}
            for job in taken:
                if job is None:
                    ended = True
                else:
                    by_owner.setdefault(job[0], []).append(job[1:])
            for owner, blocks in by_owner.items():
                self._store.scope(owner).save(
                    [name for name, _ in blocks],
                    [content for _, content in blocks],
                    parts=self._layout.parts,
                )
                self._forget_pending(owner.tenant_id, len(blocks))
            for _ in taken:
                self._pending.task_done()

    def _forget_pending(self, tenant_id: bytes, num_blocks: int) -> None:
        with self._lock:
            self._pending_of[tenant_id] -= num_blocks
            if not self._pending_of[tenant_id]:
                del self._pending_of[tenant_id]


class ScopedTier:
    """Implements `DurableBlocks` for one scope."""

    def __init__(self, tier: SealedTier, owner: ScopeOwner) -> None:
        self._tier = tier
        self._owner = owner

    def load(self, names: Sequence[bytes]) -> list[FloatArray | None]:
        """Return the content of each block, flat, None where there is none."""
        return self._tier.load(self._owner, names)

    def save(self, name: bytes, content: FloatArray) -> None:
        """Keep a copy of a block, soon."""
        self._tier.save(self._owner, name, content)
