"""From a slot: a request goes on from what the last one there has left, and leaves its own."""

from __future__ import annotations

from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.interface import FloatArray
from kvward.lab.resident import ResidentBlocks
from kvward.lab.sequence import Sequence
from kvward.lab.slots import SlotShelf, SlotState, num_common


class SlotSource:
    """Copies blocks between the pages and the slots of an engine that has some."""

    def __init__(self, slots: SlotShelf, resident: ResidentBlocks, behaviour: Behaviour) -> None:
        self._slots = slots
        self._resident = resident
        self._behaviour = behaviour

    def restore(self, sequence: Sequence, *, until: int) -> None:
        """Give a request its slot, and copy further blocks of its prefix from there.

        Args:
            until: Number of the first block that is not wanted.
        """
        names = [sequence.names.content.name(number) for number in range(until)]
        if sequence.slot_id is None:
            asked = sequence.request.slot_id
            if asked is None:
                asked = self._slots.assign(names, scope=sequence.scope)
            sequence.slot_id = asked
        state = self._slots.state(sequence.slot_id)
        if state is None:
            return
        common = num_common(state, names, scope=sequence.scope)
        if common <= len(sequence.held):
            self._take_what_was_left(sequence, state, until)
            return
        content = self._content(sequence, sequence.slot_id, state, common)
        for number in range(len(sequence.held), common):
            if not self._resident.grow(sequence):
                return
            self._resident.fill(sequence.held[number].block, content[:, :, number])
            self._resident.commit(sequence, number)
            self._resident.make_findable(sequence, number)
            sequence.num_reported += 1

    def save(self, sequence: Sequence, *, num_blocks: int) -> None:
        """Leave the first blocks of a request that has ended in its slot."""
        if sequence.slot_id is None or sequence.leaves_nothing:
            return
        blocks = [held.block for held in sequence.held[:num_blocks]]
        state = SlotState(
            scope=sequence.scope,
            names=tuple(sequence.names.content.name(number) for number in range(num_blocks)),
            tokens=tuple(sequence.tokens),
            content=self._resident.pages[:, :, blocks],
        )
        self._slots.put(sequence.slot_id, state)

    def _content(
        self, sequence: Sequence, slot_id: int, state: SlotState, common: int
    ) -> FloatArray:
        """Return what is copied: of the slot itself, unless that goes wrong."""
        beside = self._slots.state_beside(slot_id)
        if (
            beside is not None
            and len(beside.names) >= common
            and self._behaviour.slips_once(Slip.SLOT_MIXED, sequence.slips)
        ):
            return beside.content
        return state.content

    def _take_what_was_left(self, sequence: Sequence, state: SlotState, until: int) -> None:
        """Attend to what another request left in the slot, where that is planted."""
        usable = range(len(sequence.held), min(len(state.names), until))
        if usable and self._behaviour.slips_once(Slip.SLOT_NOT_RESET, sequence.slips):
            for number in usable:
                if not self._resident.grow(sequence):
                    return
                self._resident.fill(sequence.held[number].block, state.content[:, :, number])
