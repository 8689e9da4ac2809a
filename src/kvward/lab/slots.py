"""Slots: numbered places that keep the state of the last request that ran there.

A slot can be taken out as bytes and put back, in this engine or after it has forgotten. The bytes
carry a MAC over the scope that took them out; nobody else's are put back, nor changed ones.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from kvward.canonical import encode
from kvward.errors import UsageError
from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.interface import FloatArray, SlotView

_MAC_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotState:
    """What a request left in its slot.

    Attributes:
        names: Of its full blocks, without a scope; they commit to model, tokens and pictures.
        tokens: Prompt and answer, the placeholders of pictures included.
        content: (layers, 2, blocks, block_tokens, kv_heads, head_dim), as many as names.
    """

    scope: str | None
    names: tuple[bytes, ...]
    tokens: tuple[int, ...]
    content: FloatArray


class _Taken(msgspec.Struct, kw_only=True):
    names: list[bytes]
    tokens: list[int]
    content: bytes


class SlotShelf:
    """The slots of one engine.

    Args:
        shape: Of the content of one block, (layers, 2, block_tokens, kv_heads, head_dim).
    """

    def __init__(self, num_slots: int, *, shape: tuple[int, ...], behaviour: Behaviour) -> None:
        self._shape = shape
        self._behaviour = behaviour
        self._key = secrets.token_bytes(32)
        # Longest-unused first.
        self._states: OrderedDict[int, SlotState | None] = OrderedDict.fromkeys(range(num_slots))

    def check(self, slot_id: int) -> None:
        """Refuse a slot that does not exist.

        Raises:
            UsageError: There is no such slot.
        """
        if slot_id not in self._states:
            raise UsageError(f"There is no slot {slot_id}.")

    def assign(self, names: Sequence[bytes], *, scope: str | None) -> int:
        """Return the slot with the longest beginning of a request, else the longest-unused one."""
        best, most = next(iter(self._states)), 0
        for slot_id, state in self._states.items():
            common = 0 if state is None else num_common(state, names, scope=scope)
            if common > most:
                best, most = slot_id, common
        self._states.move_to_end(best)
        return best

    def state(self, slot_id: int) -> SlotState | None:
        """Return what is in a slot."""
        return self._states[slot_id]

    def state_beside(self, slot_id: int) -> SlotState | None:
        """Return what is in some other slot, if anything is in one."""
        return next((s for i, s in self._states.items() if i != slot_id and s is not None), None)

    def put(self, slot_id: int, state: SlotState) -> None:
        """Replace what is in a slot."""
        self._states[slot_id] = state
        self._states.move_to_end(slot_id)

    def erase(self, scope: str | None) -> int:
        """Empty the slots of a scope; returns how many blocks were in them."""
        num_blocks = 0
        for slot_id, state in self._states.items():
            if state is not None and state.scope == scope:
                num_blocks += len(state.names)
                self._states[slot_id] = None
        return num_blocks

    def view(self, *, scope: str | None) -> list[SlotView]:
        """Return what a scope may know of the slots: its own ones."""
        everybody = self._behaviour.slips(Slip.SLOTS_REVEAL_PROMPTS)
        return [
            SlotView(slot_id=slot_id, tokens=state.tokens)
            for slot_id, state in sorted(self._states.items())
            if state is not None and (state.scope == scope or everybody)
        ]

    def take_out(self, slot_id: int, *, scope: str | None) -> bytes | None:
        """Return the state of a slot as bytes; None when there is none of this scope."""
        self.check(slot_id)
        state = self._states[slot_id]
        if state is None or state.scope != scope:
            return None
        taken = _Taken(
            names=list(state.names), tokens=list(state.tokens), content=state.content.tobytes()
        )
        body = msgspec.msgpack.encode(taken)
        return self._mac(body, scope=scope) + body

    def put_back(self, slot_id: int, taken: bytes, *, scope: str | None) -> int:
        """Replace what is in a slot with what `take_out` returned; nothing changes on failure.

        Args:
            taken: [untrusted]
        Returns:
            How many blocks that are.
        Raises:
            UsageError: There is no such slot, or the bytes are not what this scope took out.
        """
        self.check(slot_id)
        mac, body = taken[:_MAC_BYTES], taken[_MAC_BYTES:]
        is_authentic = hmac.compare_digest(mac, self._mac(body, scope=scope))
        if not is_authentic and not self._behaviour.slips(Slip.SLOT_STATE_UNVERIFIED):
            raise UsageError("This is not the state of a slot that was taken out here.")
        try:
            parsed = msgspec.msgpack.decode(body, type=_Taken)
            layers, planes, *rest = self._shape
            content = np.frombuffer(parsed.content, np.float32).reshape(
                layers, planes, len(parsed.names), *rest
            )
        except (msgspec.DecodeError, ValueError) as exc:
            raise UsageError("This is not the state of a slot.") from exc
        state = SlotState(
            scope=scope,
            names=tuple(parsed.names),
            tokens=tuple(parsed.tokens),
            content=content.copy(),
        )
        self.put(slot_id, state)
        return len(state.names)

    def _mac(self, body: bytes, *, scope: str | None) -> bytes:
        message = encode("kvward/lab/slot/v1", scope, body)
        return hmac.new(self._key, message, hashlib.sha256).digest()


def num_common(state: SlotState, names: Sequence[bytes], *, scope: str | None) -> int:
    """Return how many leading blocks of a request a slot holds; 0 for another scope."""
    if state.scope != scope:
        return 0
    number = 0
    while number < min(len(state.names), len(names)) and state.names[number] == names[number]:
        number += 1
    return number
