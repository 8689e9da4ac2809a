"""Blocks in the engine's own pages: leased, found by prefix, given back, evicted to the host tier.

The pool says who has a block, the index what can be found in it; this says both at once, under
the ward's eyes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.index import PrefixIndex
from kvward.lab.interface import EngineOptions, FloatArray, LlamaConfig, Ward
from kvward.lab.model import new_pages
from kvward.lab.offload import HostTier
from kvward.lab.pool import BlockPool
from kvward.lab.sequence import HeldBlock, Sequence


@dataclass(slots=True, kw_only=True, eq=False)
class _Label:
    """What is known of a block that can be found.

    Attributes:
        offload_name: Its name in the host tier.
        content_name: Without a scope; None when nobody asks for it.
        scopes: Of the requests that wrote or reused it.
    """

    offload_name: bytes
    content_name: bytes | None
    scopes: set[str | None] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LateSave:
    """A block whose content is to be read for the host tier when it is too late."""

    block: int
    name: bytes
    owner: str | None
    scopes: frozenset[str | None]


class ResidentBlocks:
    """The pages of one engine, and everything that is known of what is in them.

    Args:
        ward: Asked before anything cached is read; None for an engine without one.
        host: Takes what is evicted.
        stats: Counts "refused_hits" and "evicted_blocks".
    Attributes:
        pages: (layers, 2, blocks, block_tokens, kv_heads, head_dim).
    """

    def __init__(
        self,
        config: LlamaConfig,
        options: EngineOptions,
        behaviour: Behaviour,
        *,
        ward: Ward | None,
        host: HostTier,
        stats: Counter[str],
    ) -> None:
        self._options = options
        self._behaviour = behaviour
        self._ward = ward
        self._host = host
        self._stats = stats
        self._pool = BlockPool(options.num_blocks, on_evict=self._evict)
        self._index = PrefixIndex()
        self._labels: dict[int, _Label] = {}
        self._late_saves: list[_LateSave] = []
        self._content_names: Counter[bytes] = Counter()
        self.pages = new_pages(
            config, num_blocks=options.num_blocks, block_tokens=options.block_tokens
        )

    @property
    def num_available(self) -> int:
        """Return how many blocks nobody holds."""
        return self._pool.num_available

    def grow(self, sequence: Sequence) -> bool:
        """Give a request one more block; False when every block is held."""
        block = self._pool.allocate()
        if block is None:
            return False
        generation = 0
        if self._ward is not None:
            generation = self._ward.grant(block, scope=sequence.warded_scope)
        sequence.held.append(HeldBlock(block=block, pinned=True, generation=generation))
        return True

    def take(self, sequence: Sequence, number: int) -> HeldBlock | None:
        """Find and, in the same breath, hold a block of a prefix; None for a miss."""
        name = sequence.names.resident.name(number)
        block = self._index.find(name)
        if block is None:
            return None
        generation: int | None = 0
        if self._ward is not None:
            generation = self._ward.may_reuse(block, scope=sequence.warded_scope, name=name)
        if generation is None:
            self._stats["refused_hits"] += 1
            return None
        is_pinned = not self._behaviour.slips_once(Slip.REUSE_IN_FLIGHT, sequence.slips)
        if is_pinned:
            self._pool.pin(block)
        return HeldBlock(block=block, pinned=is_pinned, generation=generation)

    def count_hits(self, sequence: Sequence) -> None:
        """Count what was found as reused, and this scope as one that reused it."""
        for held in sequence.held:
            label = self._labels.get(held.block)
            if label is None:
                continue
            if sequence.scope in label.scopes or not self._behaviour.has(Slip.HIDDEN_SHARING):
                sequence.num_reported += 1
            label.scopes.add(sequence.scope)

    def num_known_to_all(self, sequence: Sequence, *, at_most: int) -> int:
        """Return how many leading blocks anybody has; 0 in the sound engine, which does not ask."""
        number = 0
        if self._behaviour.slips(Slip.CACHED_TOKENS_GLOBAL):
            while number < at_most and self._content_names[sequence.names.content.name(number)] > 0:
                number += 1
        return number

    def fill(self, block: int, content: FloatArray) -> None:
        """Write the layers that there are, each (2, block_tokens, kv_heads, head_dim)."""
        self.pages[: len(content), :, block] = content

    def commit(self, sequence: Sequence, number: int) -> bool:
        """Commit a block; False when its lease has ended, and with no ward nobody knows better."""
        if self._ward is None:
            return True
        held = sequence.held[number]
        name = sequence.names.resident.name(number)
        return self._ward.commit(held.block, generation=held.generation, name=name)

    def make_findable(
        self, sequence: Sequence, number: int, *, scopes: frozenset[str | None] = frozenset()
    ) -> None:
        """Let a block be found by its prefix, where prefixes are kept.

        Args:
            scopes: That wrote or reused its content before it came here.
        """
        if not self._options.prefix_cache or sequence.leaves_nothing:
            return
        block = sequence.held[number].block
        if self._index.hash_of(block) is not None:
            return
        if self._index.insert(sequence.names.resident.name(number), block):
            content_name = None
            if self._behaviour.has(Slip.CACHED_TOKENS_GLOBAL):
                content_name = sequence.names.content.name(number)
                self._content_names[content_name] += 1
            self._labels[block] = _Label(
                offload_name=sequence.names.offload.name(number),
                content_name=content_name,
                scopes={*scopes, sequence.scope},
            )

    def give_back(self, held_blocks: list[HeldBlock]) -> None:
        """Take back what a request held; what can be found is kept."""
        # Last block first: the end of a prefix is evicted before its beginning.
        for held in reversed(held_blocks):
            if held.pinned:
                is_shared = self._pool.holders(held.block) > 1
                self.release(held.block)
                if is_shared and self._behaviour.slips(Slip.DOUBLE_OWNERSHIP):
                    self._pool.free_held(held.block)

    def pin(self, block: int) -> None:
        """Add a holder to a block."""
        self._pool.pin(block)

    def release(self, block: int) -> None:
        """Take away a holder of a block."""
        self._pool.release(block, keep=self._index.hash_of(block) is not None)
        if self._options.scope_quota_blocks is not None and self._pool.is_kept(block):
            self._keep_to_quota(block, quota=self._options.scope_quota_blocks)

    def blocks_of(self, scope: str | None) -> list[int]:
        """Return the blocks that can be found and that a scope wrote or reused."""
        return [block for block, label in self._labels.items() if scope in label.scopes]

    def erase(self, blocks: list[int]) -> None:
        """Forget blocks, and overwrite those that nobody holds."""
        for block in blocks:
            self._forget(block)
            if self._pool.is_kept(block):
                self._pool.drop_kept(block)
                self.pages[:, :, block] = 0

    def drop_late_saves(self, scope: str | None) -> None:
        """Give up what of a scope was still to be saved."""
        self._late_saves = [late for late in self._late_saves if scope not in late.scopes]

    def save_late(self) -> None:
        """Do the saves that were put off; the sound engine puts none off."""
        saves, self._late_saves = self._late_saves, []
        for late in saves:
            content = self.pages[:, :, late.block]
            self._host.store(late.name, content, owner=late.owner, scopes=late.scopes)

    def _keep_to_quota(self, block: int, *, quota: int) -> None:
        """Evict the longest-unused block of a scope when it has more than its share."""
        scopes = self._labels[block].scopes
        kept = [b for b in self._pool.kept() if not scopes.isdisjoint(self._labels[b].scopes)]
        if len(kept) > quota and not self._behaviour.slips(Slip.QUOTA_IGNORED):
            self._pool.evict(kept[0])

    def _evict(self, block: int) -> None:
        name = self._index.hash_of(block)
        if name is None:
            return
        label = self._labels[block]
        owner = None if self._ward is None else self._ward.written_for(block, name=name)
        if self._options.host_blocks and (self._ward is None or owner is not None):
            self._offload(block, label, owner=owner)
        self._stats["evicted_blocks"] += 1
        if not self._behaviour.slips(Slip.PHANTOM_HIT):
            self._forget(block)

    def _offload(self, block: int, label: _Label, *, owner: str | None) -> None:
        scopes = frozenset(label.scopes)
        if self._behaviour.slips(Slip.LATE_OFFLOAD):
            self._late_saves.append(
                _LateSave(block=block, name=label.offload_name, owner=owner, scopes=scopes)
            )
        else:
            content = self.pages[:, :, block]
            self._host.store(label.offload_name, content, owner=owner, scopes=scopes)

    def _forget(self, block: int) -> None:
        """Take a block out of the index."""
        self._index.remove(block)
        label = self._labels.pop(block, None)
        if label is not None and label.content_name is not None:
            self._content_names[label.content_name] -= 1
