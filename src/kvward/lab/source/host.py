"""From the host tier: evicted blocks come back, at once or some steps later."""

from __future__ import annotations

from collections import Counter

import numpy as np

from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.interface import FloatArray, Ward
from kvward.lab.offload import HostEntry, HostTier
from kvward.lab.resident import ResidentBlocks
from kvward.lab.sequence import Sequence
from kvward.lab.transfer import Transfer, Transfers


class HostSource:
    """Brings blocks from the host tier into the pages.

    Args:
        host_steps: Steps until a block has come; 0: at once.
        ward: Asked whether what comes back may; None for an engine without one.
        stats: Counts "restored_blocks".
    """

    def __init__(
        self,
        host: HostTier,
        resident: ResidentBlocks,
        behaviour: Behaviour,
        *,
        host_steps: int,
        ward: Ward | None,
        stats: Counter[str],
    ) -> None:
        self._host = host
        self._resident = resident
        self._behaviour = behaviour
        self._host_steps = host_steps
        self._ward = ward
        self._stats = stats
        self._transfers = Transfers()

    @property
    def is_transferring(self) -> bool:
        """Tell whether anything is on its way."""
        return len(self._transfers) > 0

    def step(self) -> None:
        """Let what is due land."""
        self._transfers.step()

    def restore(self, sequence: Sequence, *, until: int) -> None:
        """Bring further blocks of a prefix back.

        Args:
            until: Number of the first block that is not wanted.
        """
        for number in range(len(sequence.held), until):
            entry = self._host.fetch(sequence.names.offload.name(number))
            if (
                entry is None
                or not self._may_restore(entry, sequence)
                or not self._resident.grow(sequence)
            ):
                return
            if (
                sequence.scope in entry.scopes
                or not entry.scopes
                or not self._behaviour.has(Slip.HIDDEN_SHARING)
            ):
                sequence.num_reported += 1
            self._stats["restored_blocks"] += 1
            content = self._as_restored(entry, sequence)
            if self._host_steps:
                self._begin_transfer(sequence, number, content, entry.scopes)
                continue
            self._resident.fill(sequence.held[number].block, content)
            self._resident.commit(sequence, number)
            self._resident.make_findable(sequence, number, scopes=entry.scopes)

    def leave(self, sequence: Sequence) -> None:
        """Give up waiting for what is on its way; the copies keep their blocks until they land."""
        if not sequence.num_loading:
            return
        sequence.num_loading = 0
        if self._behaviour.slips_once(Slip.CANCEL_IN_FLIGHT, sequence.slips):
            blocks = {held.block for held in sequence.held}
            for transfer in self._transfers.iter_to(blocks):
                transfer.owns_block = False
                self._resident.release(transfer.block)

    def _may_restore(self, entry: HostEntry, sequence: Sequence) -> bool:
        if self._ward is None:
            return True
        return self._ward.may_restore(entry.owner, scope=sequence.warded_scope)

    def _as_restored(self, entry: HostEntry, sequence: Sequence) -> FloatArray:
        """Return what reaches the pages: the content, less what goes wrong on the way."""
        if not entry.is_loaded:
            return entry.content[:0]
        if self._behaviour.slips_once(Slip.LAYER_MISSING, sequence.slips):
            return entry.content[:-1]
        if self._behaviour.slips_once(Slip.POSITION_SHIFT, sequence.slips):
            return np.concatenate((entry.content[:, :, :1], entry.content[:, :, :-1]), axis=2)
        return entry.content

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
            self._resident.fill(transfer.block, transfer.content)
            if number < len(sequence.held) and sequence.held[number] is held:
                sequence.num_loading -= 1
                self._resident.commit(sequence, number)
                self._resident.make_findable(sequence, number, scopes=scopes)
            if transfer.owns_block:
                self._resident.release(transfer.block)

        self._resident.pin(held.block)
        self._transfers.begin(
            Transfer(
                block=held.block,
                content=content.copy(),
                steps_left=self._host_steps,
                land=land,
            )
        )
