"""Blocks of requests: found by prefix, handed out, published, taken back, under the ward's eyes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvward.blocks.chain import derive_chain_root
from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.index import PrefixIndex
from kvward.lab.interface import (
    EngineOptions,
    GenerationRequest,
    LlamaConfig,
    TokenEvent,
    Ward,
)
from kvward.lab.model import new_pages
from kvward.lab.offload import HostEntry, HostTier
from kvward.lab.pool import BlockPool
from kvward.lab.sampling import request_random
from kvward.lab.sequence import HeldBlock, Sequence

_RESTORED_AT_ONCE = 16


class BlockMemory:
    """Device pages, prefix index and host tier of one engine.

    Args:
        ward: Asked before anything cached is read; None for an engine without one.
        manifest_digest: Names the exact model in every block hash.
    """

    def __init__(
        self,
        config: LlamaConfig,
        options: EngineOptions,
        behaviour: Behaviour,
        *,
        ward: Ward | None,
        manifest_digest: bytes,
        stats: Counter[str],
    ) -> None:
        self._options = options
        self._behaviour = behaviour
        self._ward = ward
        self._manifest_digest = manifest_digest
        self._stats = stats
        self._pool = BlockPool(options.num_blocks, on_evict=self._evict)
        self._index = PrefixIndex()
        self._host = HostTier(options.host_blocks)
        self.pages = new_pages(
            config, num_blocks=options.num_blocks, block_tokens=options.block_tokens
        )

    def open_sequence(
        self, request: GenerationRequest, on_event: Callable[[TokenEvent], None]
    ) -> Sequence:
        """Begin a request: decide its scope and where its prefix chain begins."""
        scope = request.cache_salt
        if self._ward is not None:
            scope = self._ward.admit(request.cache_salt)
        durable = None
        if self._ward is not None:
            durable = self._ward.durable(request.cache_salt, request.owner_tag)
        key_scope = None if self._behaviour.slips(Slip.SCOPE_MISSING) else scope
        return Sequence(
            request=request,
            on_event=on_event,
            scope=scope,
            chain_root=derive_chain_root(manifest_digest=self._manifest_digest, scope=key_scope),
            random=request_random(request.sampling),
            tokens=list(request.prompt_token_ids),
            durable=durable,
            content_root=derive_chain_root(manifest_digest=self._manifest_digest, scope=None),
        )

    def admit(self, sequence: Sequence, *, headroom: int) -> bool:
        """Give a request all blocks its tokens need, as many as possible with their content.

        Args:
            headroom: Blocks that must stay available for running requests.
        Returns:
            False, and nothing changed, when memory does not suffice now.
        """
        block_tokens = self._options.block_tokens
        hits = self._take_hits(sequence)
        needed = self._blocks_for(len(sequence.tokens)) - len(hits)
        if needed > 0 and self._pool.num_available < needed + headroom:
            self._give_back(hits)
            return False
        sequence.held = hits
        self._restore_from_host(sequence)
        self._restore_from_store(sequence)
        sequence.num_computed = len(sequence.held) * block_tokens
        sequence.num_published = len(sequence.held)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            self._stats["cached_tokens"] += sequence.num_computed
        while len(sequence.held) < self._blocks_for(len(sequence.tokens)):
            if not self.grow(sequence):  # only when hits were not held and one was taken
                self.release(sequence)
                return False
        unwritten = range(sequence.num_published, len(sequence.tokens) // block_tokens)
        if unwritten and self._slips(Slip.EARLY_PUBLISH, sequence):
            for number in unwritten:
                self._make_findable(sequence, number)
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Give a request one more block; False when every block is held."""
        block = self._pool.allocate()
        if block is None:
            return False
        generation = 0
        if self._ward is not None:
            generation = self._ward.grant(block, scope=_known(sequence.scope))
        sequence.held.append(HeldBlock(block=block, pinned=True, generation=generation))
        return True

    def needs_block(self, sequence: Sequence) -> bool:
        """Tell whether the tokens of a request do not fit into its blocks."""
        return len(sequence.held) < self._blocks_for(len(sequence.tokens))

    def still_holds(self, sequence: Sequence) -> bool:
        """Tell whether the ward lets a request go on with its blocks."""
        if self._ward is None or not sequence.held:
            return True
        blocks, generations = zip(*sequence.iter_leases(), strict=True)
        return self._ward.still_holds(blocks, generations, scope=_known(sequence.scope))

    def publish(self, sequence: Sequence) -> None:
        """Commit the blocks that the last step filled in all layers, and make them findable."""
        full = sequence.num_computed // self._options.block_tokens
        for number in range(sequence.num_published, full):
            if self._commit(sequence, number):
                self._keep(sequence, number)
            self._make_findable(sequence, number)
        sequence.num_published = max(sequence.num_published, full)

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of a request; it is computed from the start if it comes again."""
        self._give_back(sequence.held)
        sequence.held = []
        sequence.num_computed = 0
        sequence.num_published = 0

    def block_table(self, sequence: Sequence) -> NDArray[np.intp]:
        """Return the blocks of a request in order."""
        return np.fromiter((held.block for held in sequence.held), np.intp, len(sequence.held))

    @property
    def num_available(self) -> int:
        """Return how many blocks nobody holds."""
        return self._pool.num_available

    def _slips(self, slip: Slip, sequence: Sequence) -> bool:
        """Tell whether it goes wrong for a request; that is decided once."""
        return self._behaviour.slips_once(slip, sequence.slips)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._options.block_tokens)

    def _num_reusable(self, sequence: Sequence) -> int:
        # The last token is always computed: its logits are what is wanted.
        if not self._options.prefix_cache:
            return 0
        return (len(sequence.tokens) - 1) // self._options.block_tokens

    def _take_hits(self, sequence: Sequence) -> list[HeldBlock]:
        """Find and, in the same breath, hold the blocks whose content is on the device."""
        hits = []
        for number in range(self._num_reusable(sequence)):
            name = sequence.block_hash(number, block_tokens=self._options.block_tokens)
            block = self._index.find(name)
            if block is None:
                break
            generation: int | None = 0
            if self._ward is not None:
                generation = self._ward.may_reuse(block, scope=_known(sequence.scope), name=name)
            if generation is None:
                self._stats["refused_hits"] += 1
                break
            is_pinned = not self._slips(Slip.REUSE_IN_FLIGHT, sequence)
            if is_pinned:
                self._pool.pin(block)
            hits.append(HeldBlock(block=block, pinned=is_pinned, generation=generation))
        return hits

    def _restore_from_host(self, sequence: Sequence) -> None:
        """Copy further blocks of the prefix back from the host tier."""
        for number in range(len(sequence.held), self._num_reusable(sequence)):
            name = sequence.block_hash(number, block_tokens=self._options.block_tokens)
            entry = self._host.fetch(name)
            if entry is None or not self._may_restore(entry, sequence) or not self.grow(sequence):
                return
            held = sequence.held[number]
            self.pages[:, :, held.block] = entry.content
            self._commit(sequence, number)
            self._make_findable(sequence, number)
            self._stats["restored_blocks"] += 1

    def _restore_from_store(self, sequence: Sequence) -> None:
        """Copy further blocks of the prefix from outside the engine, some at a time."""
        if sequence.durable is None:
            return
        block_tokens = self._options.block_tokens
        reusable = self._num_reusable(sequence)
        while (begin := len(sequence.held)) < reusable:
            numbers = range(begin, min(begin + _RESTORED_AT_ONCE, reusable))
            names = [sequence.content_hash(n, block_tokens=block_tokens) for n in numbers]
            for number, content in zip(numbers, sequence.durable.load(names), strict=True):
                if content is None or not self.grow(sequence):
                    return
                block = sequence.held[number].block
                pages = self.pages[:, :, block]
                pages[:] = content.reshape(pages.shape)
                self._commit(sequence, number)
                self._make_findable(sequence, number)
                self._stats["restored_blocks"] += 1
                self._stats["opened_blocks"] += 1

    def _keep(self, sequence: Sequence, number: int) -> None:
        """Keep a block outside the engine, too: it was written under a lease that still holds."""
        if sequence.durable is not None and self._options.prefix_cache:
            name = sequence.content_hash(number, block_tokens=self._options.block_tokens)
            sequence.durable.save(name, self.pages[:, :, sequence.held[number].block])

    def _commit(self, sequence: Sequence, number: int) -> bool:
        """Commit a block; False when its lease has ended, and with no ward nobody knows better."""
        if self._ward is None:
            return True
        held = sequence.held[number]
        name = sequence.block_hash(number, block_tokens=self._options.block_tokens)
        return self._ward.commit(held.block, generation=held.generation, name=name)

    def _make_findable(self, sequence: Sequence, number: int) -> None:
        if self._options.prefix_cache:
            name = sequence.block_hash(number, block_tokens=self._options.block_tokens)
            block = sequence.held[number].block
            if self._index.hash_of(block) is None:
                self._index.insert(name, block)

    def _give_back(self, held_blocks: list[HeldBlock]) -> None:
        # Last block first: the end of a prefix is evicted before its beginning.
        for held in reversed(held_blocks):
            if held.pinned:
                self._pool.release(held.block, keep=self._index.hash_of(held.block) is not None)

    def _evict(self, block: int) -> None:
        name = self._index.hash_of(block)
        if name is None:
            return
        owner = None if self._ward is None else self._ward.written_for(block, name=name)
        if self._ward is None or owner is not None:
            self._host.store(name, self.pages[:, :, block], owner=owner)
        self._index.remove(block)
        self._stats["evicted_blocks"] += 1

    def _may_restore(self, entry: HostEntry, sequence: Sequence) -> bool:
        if self._ward is None:
            return True
        return self._ward.may_restore(entry.owner, scope=_known(sequence.scope))


def _known(scope: str | None) -> str:
    """Return the scope that a ward has given; a ward always gives one."""
    assert scope is not None  # noqa: S101 - a ward's admit returns text
    return scope
