"""What can be done to one stored part. Each is given what lies there and returns what shall lie."""

from __future__ import annotations

import pickle
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from attacks.stored_state.world import Item, World
from kvward.seal import OVERHEAD_BYTES, OpenRefusal

R = OpenRefusal
_TAG = R.NOT_AUTHENTIC
FIELDS = {
    "magic": (0, 4, {R.NOT_A_BLOCK}),
    "version": (4, 1, {R.VERSION}),
    "suite": (5, 1, {R.SUITE}),
    "reserved bytes": (6, 2, {R.RESERVED}),
    "key id": (8, 8, {R.KEY}),
    "epoch": (16, 8, {R.EPOCH}),
    "time of creation": (24, 8, {_TAG, R.EXPIRED, R.FROM_THE_FUTURE}),
    "length": (32, 8, {R.LENGTH}),
    "nonce": (40, 24, {_TAG}),
}
SHORT = {R.TOO_SHORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One part of one block, about to be attacked."""

    world: World
    item: Item
    part: int
    random: random.Random

    @property
    def sealed(self) -> bytes:
        """What honestly lies there."""
        return self.world.stored[self.item.names[self.part]]

    def other(self, differs: Callable[[Item], bool]) -> bytes | None:
        """Return what lies where another block of the same kind has this part."""
        found = [i for i in self.world.items if i.layout == self.item.layout and differs(i)]
        if not found:
            return None
        return self.world.stored[self.random.choice(found).names[self.part]]


Change = Callable[[Case], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A way to change a stored part.

    Attributes:
        change: Returns the new bytes; None when it does not apply to the case.
        reasons: Why what comes of it may be refused.
    """

    name: str
    change: Change
    reasons: frozenset[OpenRefusal]


def _flip(sealed: bytes, at: int, rng: random.Random) -> bytes:
    changed = bytearray(sealed)
    changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _flip_in(begin: int, length: int) -> Change:
    return lambda c: _flip(c.sealed, begin + c.random.randrange(length), c.random)


def _put_at(at: int, value: Callable[[Case], bytes]) -> Change:
    def change(case: Case) -> bytes:
        put = value(case)
        return case.sealed[:at] + put + case.sealed[at + len(put) :]

    return change


def _u64(number: int) -> bytes:
    return struct.pack(">Q", number % 2**64)


def _cut_to_claimed_length(case: Case) -> bytes:
    plain = case.random.randrange(len(case.sealed) - OVERHEAD_BYTES)
    cut = case.sealed[: OVERHEAD_BYTES + plain]
    return cut[:32] + _u64(plain) + cut[40:]


def _splice(begin: int, end: int | None) -> Change:
    """Put a piece of another block in: of the same scope, so that its key is right."""

    def change(case: Case) -> bytes | None:
        mine = case.item
        other = case.other(
            lambda i: (
                (i.owner, i.epoch) == (mine.owner, mine.epoch) and i.chain_hash != mine.chain_hash
            )
        )
        if other is None:
            return None
        rest = case.sealed[end:] if end is not None else b""
        return case.sealed[:begin] + other[begin:end] + rest

    return change


def _swapped(differs: Callable[[Item, Item], bool]) -> Change:
    return lambda c: c.other(lambda i: differs(i, c.item))


def _same(a: Item, b: Item, *names: str) -> bool:
    return all(getattr(a, name) == getattr(b, name) for name in names)


def _other_part(case: Case) -> bytes | None:
    parts = len(case.item.names)
    if parts == 1:
        return None
    other = (case.part + case.random.randrange(1, parts)) % parts
    return case.world.stored[case.item.names[other]]


_ALL = ("tenant", "conversation", "model", "position", "epoch")
_SWAPS: dict[str, tuple[Change, set[OpenRefusal]]] = {
    "block of another position": (
        _swapped(
            lambda a, b: (
                _same(a, b, "tenant", "conversation", "model", "epoch") and a.position != b.position
            )
        ),
        {_TAG},
    ),
    "block of another model": (
        _swapped(
            lambda a, b: (
                _same(a, b, "tenant", "conversation", "position", "epoch") and a.model != b.model
            )
        ),
        {_TAG},
    ),
    "same block of another conversation": (
        _swapped(
            lambda a, b: (
                _same(a, b, "tenant", "model", "position", "epoch")
                and a.conversation != b.conversation
            )
        ),
        {R.KEY},
    ),
    "same block of another tenant": (
        _swapped(lambda a, b: _same(a, b, "model", "position") and a.tenant != b.tenant),
        {R.KEY, R.EPOCH},
    ),
    "block of another epoch": (
        _swapped(
            lambda a, b: _same(a, b, "tenant", "conversation", "model") and a.epoch != b.epoch
        ),
        {R.EPOCH},
    ),
    "another part of the same block": (_other_part, {_TAG}),
}

_GARBAGE: dict[str, Change] = {
    "nothing": lambda _: b"",
    "random bytes": lambda c: c.random.randbytes(len(c.sealed)),
    "zeros": lambda c: bytes(len(c.sealed)),
    "ones": lambda c: b"\xff" * len(c.sealed),
    "plaintext as it is": lambda c: c.item.plain,
    "a pickle": lambda c: pickle.dumps({"block": c.random.randbytes(64)}),
    "a safetensors file": lambda c: struct.pack("<Q", 2) + b"{}" + c.random.randbytes(200),
    "compressed": lambda c: zlib.compress(c.sealed),
}


def all_mutations() -> list[Mutation]:
    """Return every mutation."""
    found: dict[str, tuple[Change, set[OpenRefusal]]] = {}
    for name, (begin, length, reasons) in FIELDS.items():
        found[f"bit of the {name}"] = (_flip_in(begin, length), reasons)
    found["bit of the ciphertext"] = (
        lambda c: _flip(c.sealed, c.random.randrange(64, len(c.sealed) - 16), c.random),
        {_TAG},
    )
    found["bit of the tag"] = (
        lambda c: _flip(c.sealed, len(c.sealed) - 1 - c.random.randrange(16), c.random),
        {_TAG},
    )
    for length in (0, 1, 4, 39, 40, 63, 64, 79):
        found[f"cut to {length} bytes"] = (lambda c, n=length: c.sealed[:n], SHORT)
    found |= {
        "cut to header and tag": (lambda c: c.sealed[:OVERHEAD_BYTES], {R.LENGTH}),
        "cut by one byte": (lambda c: c.sealed[:-1], {R.LENGTH}),
        "cut by the tag": (lambda c: c.sealed[:-16], {R.LENGTH}),
        "cut in half": (lambda c: c.sealed[: len(c.sealed) // 2], {R.LENGTH, R.TOO_SHORT}),
        "begun late": (lambda c: c.sealed[c.random.randrange(1, 64) :], {R.NOT_A_BLOCK}),
        "cut, and the length with it": (_cut_to_claimed_length, {R.LENGTH}),
        "one byte more": (lambda c: c.sealed + b"\0", {R.LENGTH}),
        "a tag more": (lambda c: c.sealed + c.sealed[-16:], {R.LENGTH}),
        "twice": (lambda c: c.sealed * 2, {R.LENGTH}),
        "version of its own": (_put_at(4, lambda c: bytes([c.random.choice((0, 2, 255))])),
                               {R.VERSION}),
        "suite of its own": (_put_at(5, lambda c: bytes([c.random.choice((0, 2, 255))])),
                             {R.SUITE}),
        "version and suite zero": (_put_at(4, lambda _: bytes(2)), {R.VERSION}),
        "reserved bytes set": (_put_at(6, lambda c: bytes([c.random.randrange(1, 256)] * 2)),
                               {R.RESERVED}),
        "key id zero": (_put_at(8, lambda _: bytes(8)), {R.KEY}),
        "next epoch": (_put_at(16, lambda c: _u64(c.item.epoch + 1)), {R.EPOCH}),
        "last epoch there is": (_put_at(16, lambda _: _u64(2**64 - 1)), {R.EPOCH}),
        "made a second later": (_put_at(24, lambda c: _u64(int(c.world.now) + 1)), {_TAG}),
        "made at the beginning of time": (_put_at(24, lambda _: bytes(8)), {R.EXPIRED}),
        "made at the end of time": (_put_at(24, lambda _: _u64(-1)), {R.FROM_THE_FUTURE}),
        "length zero": (_put_at(32, lambda _: bytes(8)), {R.LENGTH}),
        "length without end": (_put_at(32, lambda _: _u64(-1)), {R.LENGTH}),
        "nonce of another block": (_splice(40, 64), {_TAG}),
        "body of another block": (_splice(64, None), {_TAG}),
        "tag of another block": (_splice(-16, None), {_TAG}),
        "header of another block": (_splice(0, 64), {_TAG}),
    }  # fmt: skip
    found |= _SWAPS
    not_ours = {R.NOT_A_BLOCK, R.TOO_SHORT}
    found |= {name: (change, not_ours) for name, change in _GARBAGE.items()}
    return [
        Mutation(name=name, change=change, reasons=frozenset(reasons))
        for name, (change, reasons) in found.items()
    ]
