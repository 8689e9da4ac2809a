"""Blocks of requests: found by prefix, handed out, published, taken back, under the ward's eyes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.index import PrefixIndex
from kvward.lab.interface import (
    EngineOptions,
    FloatArray,
    GenerationRequest,
    LlamaConfig,
    TokenEvent,
    Ward,
)
from kvward.lab.media import as_seen
from kvward.lab.model import new_pages
from kvward.lab.naming import name_blocks
from kvward.lab.offload import HostEntry, HostTier
from kvward.lab.pool import BlockPool
from kvward.lab.sampling import request_random
from kvward.lab.sequence import HeldBlock, Sequence
from kvward.lab.slots import SlotShelf, SlotState, num_common
from kvward.lab.transfer import Transfer, Transfers
from kvward.lab.variants import Variant

_RESTORED_AT_ONCE = 16


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


class BlockMemory:
    """Device pages, prefix index and host tier of one engine.

    Args:
        ward: Asked before anything cached is read; None for an engine without one.
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
        self._vocab = config.vocab
        self._stats = stats
        self._pool = BlockPool(options.num_blocks, on_evict=self._evict)
        self._index = PrefixIndex()
        self._host = HostTier(
            options.host_blocks, fault_rate=options.host_fault_rate, behaviour=behaviour
        )
        self._labels: dict[int, _Label] = {}
        self._transfers = Transfers()
        self._late_saves: list[_LateSave] = []
        self._content_names: Counter[bytes] = Counter()
        self.pages = new_pages(
            config, num_blocks=options.num_blocks, block_tokens=options.block_tokens
        )
        layers, planes, _, *rest = self.pages.shape
        self.slots = SlotShelf(
            options.num_slots, shape=(layers, planes, *rest), behaviour=behaviour
        )

    def open_sequence(
        self,
        request: GenerationRequest,
        on_event: Callable[[TokenEvent], None],
        *,
        variant: Variant,
    ) -> Sequence:
        """Begin a request: decide its scope and where its prefix chain begins."""
        scope = self.scope_of(request.cache_salt)
        durable = None
        if self._ward is not None:
            durable = self._ward.durable(request.cache_salt, request.owner_tag)
        tokens = list(request.prompt_token_ids)
        return Sequence(
            request=request,
            on_event=on_event,
            scope=scope,
            variant=variant,
            seen_prompt=as_seen(tokens, request.pictures, vocab=self._vocab),
            names=name_blocks(
                request,
                tokens,
                scope=scope,
                variant=variant,
                block_tokens=self._options.block_tokens,
                behaviour=self._behaviour,
            ),
            random=request_random(request.sampling),
            tokens=tokens,
            durable=durable,
        )

    def scope_of(self, cache_salt: str | None) -> str | None:
        """Return the scope that a salt stands for; the ward's, where there is one."""
        return cache_salt if self._ward is None else self._ward.admit(cache_salt)

    @property
    def is_transferring(self) -> bool:
        """Tell whether anything is on its way from the host tier."""
        return len(self._transfers) > 0

    def begin_step(self) -> None:
        """Let what is due from the host tier land."""
        self._transfers.step()

    def end_step(self) -> None:
        """Do what was put off until the step had been computed."""
        saves, self._late_saves = self._late_saves, []
        for late in saves:
            content = self.pages[:, :, late.block]
            self._host.store(late.name, content, owner=late.owner, scopes=late.scopes)

    def admit(self, sequence: Sequence, *, headroom: int) -> bool:
        """Give a request all blocks its tokens need, as many as possible with their content.

        Args:
            headroom: Blocks that must stay available for running requests.
        Returns:
            False, and nothing changed, when memory does not suffice now.
        """
        block_tokens = self._options.block_tokens
        known_to_all = self._num_known_to_all(sequence)
        hits = self._take_hits(sequence)
        needed = self._blocks_for(len(sequence.tokens)) - len(hits)
        if needed > 0 and self._pool.num_available < needed + headroom:
            self._give_back(hits)
            return False
        sequence.held = hits
        sequence.num_reported = 0
        self._count_hits(sequence)
        self._restore_from_host(sequence)
        self._restore_from_store(sequence)
        self._restore_from_slot(sequence)
        self._take_one_too_many(sequence)
        sequence.num_computed = len(sequence.held) * block_tokens
        sequence.num_published = len(sequence.held)
        if sequence.cached_tokens is None:
            reported = max(sequence.num_reported, known_to_all)
            sequence.cached_tokens = reported * block_tokens
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
        if sequence.num_loading:
            self._leave_transfers(sequence)
        self._give_back(sequence.held)
        sequence.held = []
        sequence.num_computed = 0
        sequence.num_published = 0

    def erase(self, cache_salt: str | None, running: list[Sequence]) -> int:
        """Forget and overwrite all state of a salt, in every tier of the engine.

        Args:
            running: The requests of this salt. What they hold they keep, and leave nothing.
        Returns:
            How many blocks that were.
        """
        scope = self.scope_of(cache_salt)
        blocks = [block for block, label in self._labels.items() if scope in label.scopes]
        if self._behaviour.slips(Slip.ERASE_REPORTED_ONLY):
            return len(blocks)
        for sequence in running:
            sequence.leaves_nothing = True
        for block in blocks:
            self._forget(block)
            if self._pool.is_kept(block):
                self._pool.drop_kept(block)
                self.pages[:, :, block] = 0
        num_offloaded = 0
        if not self._behaviour.slips(Slip.ERASE_SKIPS_OFFLOAD):
            self._late_saves = [late for late in self._late_saves if scope not in late.scopes]
            num_offloaded = self._host.drop_where(lambda entry: scope in entry.scopes)
        return len(blocks) + num_offloaded + self.slots.erase(scope)

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
            name = sequence.names.resident.name(number)
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

    def _count_hits(self, sequence: Sequence) -> None:
        """Count what was found as reused, and this scope as one that reused it."""
        for held in sequence.held:
            label = self._labels.get(held.block)
            if label is None:
                continue
            if sequence.scope in label.scopes or not self._behaviour.has(Slip.HIDDEN_SHARING):
                sequence.num_reported += 1
            label.scopes.add(sequence.scope)

    def _num_known_to_all(self, sequence: Sequence) -> int:
        """Return how many leading blocks anybody has; 0 in the sound engine, which does not ask."""
        number = 0
        if self._behaviour.slips(Slip.CACHED_TOKENS_GLOBAL):
            while (
                number < self._num_reusable(sequence)
                and self._content_names[sequence.names.content.name(number)] > 0
            ):
                number += 1
        return number

    def _take_one_too_many(self, sequence: Sequence) -> None:
        """Count a block as found that holds what its last user left there."""
        number = len(sequence.held)
        if (
            0 < number < self._num_reusable(sequence)
            and self._slips(Slip.HIT_TOO_LONG, sequence)
            and self.grow(sequence)
        ):
            sequence.num_reported += 1

    def _restore_from_host(self, sequence: Sequence) -> None:
        """Bring further blocks of the prefix back from the host tier, now or some steps later."""
        for number in range(len(sequence.held), self._num_reusable(sequence)):
            entry = self._host.fetch(sequence.names.offload.name(number))
            if entry is None or not self._may_restore(entry, sequence) or not self.grow(sequence):
                return
            if (
                sequence.scope in entry.scopes
                or not entry.scopes
                or not self._behaviour.has(Slip.HIDDEN_SHARING)
            ):
                sequence.num_reported += 1
            self._stats["restored_blocks"] += 1
            content = self._as_restored(entry, sequence)
            if self._options.host_steps:
                self._begin_transfer(sequence, number, content, entry.scopes)
                continue
            self._fill(sequence.held[number].block, content)
            self._commit(sequence, number)
            self._make_findable(sequence, number, scopes=entry.scopes)

    def _as_restored(self, entry: HostEntry, sequence: Sequence) -> FloatArray:
        """Return what reaches the pages: the content, less what goes wrong on the way."""
        if not entry.is_loaded:
            return entry.content[:0]
        if self._slips(Slip.LAYER_MISSING, sequence):
            return entry.content[:-1]
        if self._slips(Slip.POSITION_SHIFT, sequence):
            return np.concatenate((entry.content[:, :, :1], entry.content[:, :, :-1]), axis=2)
        return entry.content

    def _fill(self, block: int, content: FloatArray) -> None:
        """Write the layers that there are."""
        self.pages[: len(content), :, block] = content

    def _begin_transfer(
        self,
        sequence: Sequence,
        number: int,
        content: FloatArray,
        scopes: frozenset[str | None],
    ) -> None:
        held = sequence.held[number]
        sequence.num_loading += 1

        def land(transfer: Transfer) -> None:
            self._fill(transfer.block, transfer.content)
            if number < len(sequence.held) and sequence.held[number] is held:
                sequence.num_loading -= 1
                self._commit(sequence, number)
                self._make_findable(sequence, number, scopes=scopes)
            if transfer.owns_block:
                self._release_block(transfer.block)

        self._pool.pin(held.block)
        self._transfers.begin(
            Transfer(
                block=held.block,
                content=content.copy(),
                steps_left=self._options.host_steps,
                land=land,
            )
        )

    def _leave_transfers(self, sequence: Sequence) -> None:
        """Give up waiting for what is on its way; the copies keep their blocks until they land."""
        sequence.num_loading = 0
        if self._slips(Slip.CANCEL_IN_FLIGHT, sequence):
            blocks = {held.block for held in sequence.held}
            for transfer in self._transfers.iter_to(blocks):
                transfer.owns_block = False
                self._release_block(transfer.block)

    def _restore_from_store(self, sequence: Sequence) -> None:
        """Copy further blocks of the prefix from outside the engine, some at a time."""
        if sequence.durable is None:
            return
        reusable = self._num_reusable(sequence)
        while (begin := len(sequence.held)) < reusable:
            numbers = range(begin, min(begin + _RESTORED_AT_ONCE, reusable))
            names = [sequence.names.content.name(n) for n in numbers]
            for number, content in zip(numbers, sequence.durable.load(names), strict=True):
                if content is None or not self.grow(sequence):
                    return
                block = sequence.held[number].block
                pages = self.pages[:, :, block]
                pages[:] = content.reshape(pages.shape)
                self._commit(sequence, number)
                self._make_findable(sequence, number)
                sequence.num_reported += 1
                self._stats["restored_blocks"] += 1
                self._stats["opened_blocks"] += 1

    def save_slot(self, sequence: Sequence) -> None:
        """Leave the full blocks of a request that has ended in its slot."""
        if sequence.slot_id is None or sequence.leaves_nothing:
            return
        num_blocks = sequence.num_computed // self._options.block_tokens
        blocks = self.block_table(sequence)[:num_blocks]
        state = SlotState(
            scope=sequence.scope,
            names=tuple(sequence.names.content.name(number) for number in range(num_blocks)),
            tokens=tuple(sequence.tokens),
            content=self.pages[:, :, blocks],
        )
        self.slots.put(sequence.slot_id, state)

    def _restore_from_slot(self, sequence: Sequence) -> None:
        """Copy further blocks of the prefix from the slot of a request, and give it one."""
        if not self._options.num_slots:
            return
        num_full = (len(sequence.tokens) - 1) // self._options.block_tokens
        names = [sequence.names.content.name(number) for number in range(num_full)]
        if sequence.slot_id is None:
            asked = sequence.request.slot_id
            if asked is None:
                asked = self.slots.assign(names, scope=sequence.scope)
            sequence.slot_id = asked
        state = self.slots.state(sequence.slot_id)
        if state is None:
            return
        begin, common = len(sequence.held), num_common(state, names, scope=sequence.scope)
        if common <= begin:
            self._take_what_was_left(sequence, state, num_full)
            return
        content = state.content
        beside = self.slots.state_beside(sequence.slot_id)
        if (
            beside is not None
            and len(beside.names) >= common
            and self._slips(Slip.SLOT_MIXED, sequence)
        ):
            content = beside.content
        for number in range(begin, common):
            if not self.grow(sequence):
                return
            self._fill(sequence.held[number].block, content[:, :, number])
            self._commit(sequence, number)
            self._make_findable(sequence, number)
            sequence.num_reported += 1

    def _take_what_was_left(self, sequence: Sequence, state: SlotState, num_full: int) -> None:
        """Attend to what another request left in the slot, where that is planted."""
        usable = range(len(sequence.held), min(len(state.names), num_full))
        if usable and self._slips(Slip.SLOT_NOT_RESET, sequence):
            for number in usable:
                if not self.grow(sequence):
                    return
                self._fill(sequence.held[number].block, state.content[:, :, number])

    def _keep(self, sequence: Sequence, number: int) -> None:
        """Keep a block outside the engine, too: it was written under a lease that still holds."""
        if (
            sequence.durable is not None
            and self._options.prefix_cache
            and not sequence.leaves_nothing
        ):
            name = sequence.names.content.name(number)
            sequence.durable.save(name, self.pages[:, :, sequence.held[number].block])

    def _commit(self, sequence: Sequence, number: int) -> bool:
        """Commit a block; False when its lease has ended, and with no ward nobody knows better."""
        if self._ward is None:
            return True
        held = sequence.held[number]
        name = sequence.names.resident.name(number)
        return self._ward.commit(held.block, generation=held.generation, name=name)

    def _make_findable(
        self, sequence: Sequence, number: int, *, scopes: frozenset[str | None] = frozenset()
    ) -> None:
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

    def _give_back(self, held_blocks: list[HeldBlock]) -> None:
        # Last block first: the end of a prefix is evicted before its beginning.
        for held in reversed(held_blocks):
            if held.pinned:
                is_shared = self._pool.holders(held.block) > 1
                self._release_block(held.block)
                if is_shared and self._behaviour.slips(Slip.DOUBLE_OWNERSHIP):
                    self._pool.free_held(held.block)

    def _release_block(self, block: int) -> None:
        self._pool.release(block, keep=self._index.hash_of(block) is not None)
        if self._options.scope_quota_blocks is not None and self._pool.is_kept(block):
            self._keep_to_quota(block, quota=self._options.scope_quota_blocks)

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

    def _may_restore(self, entry: HostEntry, sequence: Sequence) -> bool:
        if self._ward is None:
            return True
        return self._ward.may_restore(entry.owner, scope=_known(sequence.scope))


def _known(scope: str | None) -> str:
    """Return the scope that a ward has given; a ward always gives one."""
    assert scope is not None  # noqa: S101 - a ward's admit returns text
    return scope
