"""Blocks of requests: handed out with as much of their content as can be had, published, erased."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.interface import (
    EngineOptions,
    FloatArray,
    LlamaConfig,
    Ward,
)
from kvward.lab.offload import HostTier
from kvward.lab.resident import ResidentBlocks
from kvward.lab.sequence import HeldBlock, Sequence
from kvward.lab.slots import SlotShelf
from kvward.lab.source import DurableSource, HostSource, SlotSource


class BlockMemory:
    """The memory of one engine in all its tiers.

    Args:
        ward: Asked before anything cached is read; None for an engine without one.
    Attributes:
        resident: What is in the engine's own pages.
        slots: What requests left in their slots.
    """

    def __init__(
        self,
        config: LlamaConfig,
        options: EngineOptions,
        behaviour: Behaviour,
        *,
        ward: Ward | None,
        stats: Counter[str],
    ) -> None:
        self._options = options
        self._behaviour = behaviour
        self._ward = ward
        self._stats = stats
        self._host = HostTier(
            options.host_blocks, fault_rate=options.host_fault_rate, behaviour=behaviour
        )
        self.resident = ResidentBlocks(
            config, options, behaviour, ward=ward, host=self._host, stats=stats
        )
        layers, planes, _, *rest = self.resident.pages.shape
        self.slots = SlotShelf(
            options.num_slots, shape=(layers, planes, *rest), behaviour=behaviour
        )
        self._from_host = HostSource(
            self._host,
            self.resident,
            behaviour,
            host_steps=options.host_steps,
            ward=ward,
            stats=stats,
        )
        self._durable = DurableSource(self.resident, stats=stats)
        self._from_slot = SlotSource(self.slots, self.resident, behaviour)

    @property
    def pages(self) -> FloatArray:
        """Return the pages, (layers, 2, blocks, block_tokens, kv_heads, head_dim)."""
        return self.resident.pages

    @property
    def num_available(self) -> int:
        """Return how many blocks nobody holds."""
        return self.resident.num_available

    @property
    def is_transferring(self) -> bool:
        """Tell whether anything is on its way from the host tier."""
        return self._from_host.is_transferring

    def begin_step(self) -> None:
        """Let what is due from the host tier land."""
        self._from_host.step()

    def end_step(self) -> None:
        """Do what was put off until the step had been computed."""
        self.resident.save_late()

    def admit(self, sequence: Sequence, *, headroom: int) -> bool:
        """Give a request all blocks its tokens need, as many as possible with their content.

        Args:
            headroom: Blocks that must stay available for running requests.
        Returns:
            False, and nothing changed, when memory does not suffice now.
        """
        block_tokens = self._options.block_tokens
        reusable = self._num_reusable(sequence)
        known_to_all = self.resident.num_known_to_all(sequence, at_most=reusable)
        hits = self._take_hits(sequence, at_most=reusable)
        needed = self._blocks_for(len(sequence.tokens)) - len(hits)
        if needed > 0 and self.num_available < needed + headroom:
            self.resident.give_back(hits)
            return False
        sequence.held = hits
        sequence.num_reported = 0
        self.resident.count_hits(sequence)
        self._restore(sequence)
        sequence.num_computed = len(sequence.held) * block_tokens
        sequence.num_published = len(sequence.held)
        if sequence.cached_tokens is None:
            reported = max(sequence.num_reported, known_to_all)
            sequence.cached_tokens = reported * block_tokens
            self._stats["cached_tokens"] += sequence.num_computed
        while self.needs_block(sequence):
            if not self.grow(sequence):  # only when hits were not held and one was taken
                self.release(sequence)
                return False
        self._publish_early(sequence)
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Give a request one more block; False when every block is held."""
        return self.resident.grow(sequence)

    def needs_block(self, sequence: Sequence) -> bool:
        """Tell whether the tokens of a request do not fit into its blocks."""
        return len(sequence.held) < self._blocks_for(len(sequence.tokens))

    def still_holds(self, sequence: Sequence) -> bool:
        """Tell whether the ward lets a request go on with its blocks."""
        if self._ward is None or not sequence.held:
            return True
        blocks, generations = zip(*sequence.iter_leases(), strict=True)
        return self._ward.still_holds(blocks, generations, scope=sequence.warded_scope)

    def publish(self, sequence: Sequence) -> None:
        """Commit the blocks that the last step filled in all layers, and make them findable."""
        full = sequence.num_computed // self._options.block_tokens
        for number in range(sequence.num_published, full):
            if self.resident.commit(sequence, number) and self._options.prefix_cache:
                self._durable.keep(sequence, number)
            self.resident.make_findable(sequence, number)
        sequence.num_published = max(sequence.num_published, full)

    def save_slot(self, sequence: Sequence) -> None:
        """Leave the full blocks of a request that has ended in its slot."""
        full = sequence.num_computed // self._options.block_tokens
        self._from_slot.save(sequence, num_blocks=full)

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of a request; it is computed from the start if it comes again."""
        self._from_host.leave(sequence)
        self.resident.give_back(sequence.held)
        sequence.held = []
        sequence.num_computed = 0
        sequence.num_published = 0

    def erase(self, scope: str | None, running: list[Sequence]) -> int:
        """Forget and overwrite all state of a scope, in every tier of the engine.

        Args:
            running: The requests of this scope. What they hold they keep, and leave nothing.
        Returns:
            How many blocks that were.
        """
        blocks = self.resident.blocks_of(scope)
        if self._behaviour.slips(Slip.ERASE_REPORTED_ONLY):
            return len(blocks)
        for sequence in running:
            sequence.leaves_nothing = True
        self.resident.erase(blocks)
        num_offloaded = 0
        if not self._behaviour.slips(Slip.ERASE_SKIPS_OFFLOAD):
            self.resident.drop_late_saves(scope)
            num_offloaded = self._host.drop_where(lambda entry: scope in entry.scopes)
        return len(blocks) + num_offloaded + self.slots.erase(scope)

    def block_table(self, sequence: Sequence) -> NDArray[np.intp]:
        """Return the blocks of a request in order."""
        return np.fromiter((held.block for held in sequence.held), np.intp, len(sequence.held))

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._options.block_tokens)

    def _num_full(self, sequence: Sequence) -> int:
        # The last token is always computed: its logits are what is wanted.
        return (len(sequence.tokens) - 1) // self._options.block_tokens

    def _num_reusable(self, sequence: Sequence) -> int:
        return self._num_full(sequence) if self._options.prefix_cache else 0

    def _take_hits(self, sequence: Sequence, *, at_most: int) -> list[HeldBlock]:
        """Hold the blocks whose content is on the device."""
        hits: list[HeldBlock] = []
        while len(hits) < at_most:
            held = self.resident.take(sequence, len(hits))
            if held is None:
                break
            hits.append(held)
        return hits

    def _restore(self, sequence: Sequence) -> None:
        """Fetch further blocks of a prefix from everywhere else."""
        reusable = self._num_reusable(sequence)
        self._from_host.restore(sequence, until=reusable)
        self._durable.restore(sequence, until=reusable)
        if self._options.num_slots:
            self._from_slot.restore(sequence, until=self._num_full(sequence))
        self._take_one_too_many(sequence, reusable=reusable)

    def _take_one_too_many(self, sequence: Sequence, *, reusable: int) -> None:
        """Count a block as found that holds what its last user left there."""
        number = len(sequence.held)
        if (
            0 < number < reusable
            and self._slips(Slip.HIT_TOO_LONG, sequence)
            and self.grow(sequence)
        ):
            sequence.num_reported += 1

    def _publish_early(self, sequence: Sequence) -> None:
        """Let blocks be found that are still to be computed, where that is planted."""
        full = len(sequence.tokens) // self._options.block_tokens
        unwritten = range(sequence.num_published, full)
        if unwritten and self._slips(Slip.EARLY_PUBLISH, sequence):
            for number in unwritten:
                self.resident.make_findable(sequence, number)

    def _slips(self, slip: Slip, sequence: Sequence) -> bool:
        """Tell whether it goes wrong for a request; that is decided once."""
        return self._behaviour.slips_once(slip, sequence.slips)
