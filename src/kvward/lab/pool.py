"""Which blocks of memory are free, held, or kept for reuse. Names live in `index`."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable


class BlockPool:
    """Hands out blocks and takes them back. Every block is in exactly one state.

    *Free*: nobody needs its content. *Held*: at least one running request has it. *Kept*: nobody
    has it, its content can be found in the index; evicted longest-unused first.

    Args:
        num_blocks: Size of the pool, at least 1.
        on_evict: Called with a kept block just before it is handed out again.
    """

    def __init__(self, num_blocks: int, *, on_evict: Callable[[int], None]) -> None:
        self._free: deque[int] = deque(range(num_blocks))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * num_blocks
        self._on_evict = on_evict
        self.num_blocks = num_blocks

    @property
    def num_available(self) -> int:
        """Return how many blocks can be handed out now, by eviction or without."""
        return len(self._free) + len(self._kept)

    def allocate(self) -> int | None:
        """Hand out a block with one holder; None when every block is held."""
        if self._free:
            block = self._free.popleft()
        elif self._kept:
            block, _ = self._kept.popitem(last=False)
            self._on_evict(block)
        else:
            return None
        self._holders[block] = 1
        return block

    def pin(self, block: int) -> None:
        """Add a holder to a kept or held block."""
        self._kept.pop(block, None)
        self._holders[block] += 1

    def release(self, block: int, *, keep: bool) -> None:
        """Take away a holder; without holders the block is kept or becomes free."""
        self._holders[block] -= 1
        if self._holders[block] > 0:
            return
        if keep:
            self._kept[block] = None
        else:
            self._free.append(block)

    def kept(self) -> list[int]:
        """Return the blocks that are kept, longest-unused first."""
        return list(self._kept)

    def evict(self, block: int) -> None:
        """Make a kept block free before its turn."""
        del self._kept[block]
        self._on_evict(block)
        self._free.append(block)

    def drop_kept(self, block: int) -> None:
        """Make a kept block free; nobody is asked whether its content is worth anything."""
        del self._kept[block]
        self._free.append(block)

    def free_held(self, block: int) -> None:
        """Put a block among the free ones although somebody has it. No sound engine does."""
        self._free.append(block)

    def holders(self, block: int) -> int:
        """Return how many holders a block has."""
        return self._holders[block]

    def is_kept(self, block: int) -> bool:
        """Tell whether a block is kept for reuse."""
        return block in self._kept
