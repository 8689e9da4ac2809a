"""Mutations of bytes: flipped, cut, grown, edited, or never a sealed block at all."""

from __future__ import annotations

import json
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Iterator

from attacks.hostile_state.deployment import LIMITS, SEALED_UNIX_S
from attacks.hostile_state.mutation import Fate, Laid, Mutation, lay, some_places
from attacks.hostile_state.world import Block, World
from kvward.seal import OVERHEAD_BYTES, OpenRefusal
from kvward.seal.header import BOUND_BYTES, HEADER_BYTES

R = OpenRefusal
Damage = Callable[[random.Random, bytes], bytes]
_TAG_BYTES = 16
_FIELDS: dict[str, tuple[int, int, tuple[OpenRefusal, ...]]] = {
    "magic": (0, 4, (R.NOT_A_BLOCK,)),
    "version": (4, 5, (R.VERSION,)),
    "suite": (5, 6, (R.SUITE,)),
    "reserved bytes": (6, 8, (R.RESERVED,)),
    "key id": (8, 16, (R.KEY,)),
    "epoch": (16, 24, (R.EPOCH,)),
    "creation time": (24, 32, (R.NOT_AUTHENTIC, R.EXPIRED, R.FROM_THE_FUTURE)),
    "length": (32, 40, (R.LENGTH,)),
    "nonce": (40, 64, (R.NOT_AUTHENTIC,)),
    "ciphertext": (64, -_TAG_BYTES, (R.NOT_AUTHENTIC,)),
    "tag": (-_TAG_BYTES, 0, (R.NOT_AUTHENTIC,)),
}


def flip(dice: random.Random, sealed: bytes, first: int, end: int) -> bytes:
    """Flip one bit in a range; ends count from the back where they are not positive."""
    changed = bytearray(sealed)
    begin = first % len(sealed)
    place = dice.randrange(begin, end if end > 0 else len(sealed) + end)
    changed[place] ^= 1 << dice.randrange(8)
    return bytes(changed)


def edit(sealed: bytes, offset: int, value: bytes) -> bytes:
    """Write a value over some bytes."""
    return sealed[:offset] + value + sealed[offset + len(value) :]


def edit_number(sealed: bytes, offset: int, value: int) -> bytes:
    """Write an integer of 8 bytes."""
    return edit(sealed, offset, value.to_bytes(8, "big"))


def cut_inside_the_header(dice: random.Random, sealed: bytes) -> bytes:
    """Keep some bytes of the header."""
    return sealed[: dice.randrange(2, HEADER_BYTES)]


def cut_anywhere(dice: random.Random, sealed: bytes) -> bytes:
    """Keep any number of bytes."""
    return sealed[: dice.randrange(len(sealed))]


def cut_and_say_so(dice: random.Random, sealed: bytes) -> bytes:
    """Cut bytes off, and have the header's length agree."""
    plain_bytes = dice.randrange(len(sealed) - OVERHEAD_BYTES)
    return edit_number(sealed[: plain_bytes + OVERHEAD_BYTES], 32, plain_bytes)


def grow_and_say_so(dice: random.Random, sealed: bytes) -> bytes:
    """Append bytes, and have the header's length agree."""
    more = dice.randrange(1, 64)
    return edit_number(sealed + bytes(more), 32, len(sealed) + more - OVERHEAD_BYTES)


def cut_the_front(dice: random.Random, sealed: bytes) -> bytes:
    """Lose the first bytes, as a seek to the wrong place does."""
    return sealed[dice.randrange(1, 32) :]


def tear(dice: random.Random, sealed: bytes) -> bytes:
    """Leave zeros behind a point, as a write that was never completed does."""
    keep = dice.randrange(HEADER_BYTES, len(sealed) - _TAG_BYTES)
    return sealed[:keep] + bytes(len(sealed) - keep)


def older_than_its_age(dice: random.Random, sealed: bytes) -> bytes:
    """Claim to be past the maximum age."""
    age = LIMITS.max_age_s + dice.randrange(1, 1000)
    return edit_number(sealed, 24, SEALED_UNIX_S - age)


def a_little_older(dice: random.Random, sealed: bytes) -> bytes:
    """Claim another time within the age."""
    return edit_number(sealed, 24, SEALED_UNIX_S - dice.randrange(1, LIMITS.max_age_s + 1))


def a_little_younger(dice: random.Random, sealed: bytes) -> bytes:
    """Claim another time within what clocks may differ."""
    return edit_number(sealed, 24, SEALED_UNIX_S + dice.randrange(1, LIMITS.clock_skew_s + 1))


def from_the_future(dice: random.Random, sealed: bytes) -> bytes:
    """Claim a time that has not come, near or absurdly far."""
    far = dice.choice([LIMITS.clock_skew_s + 1, 10**6, 2**62, 2**63 - SEALED_UNIX_S])
    return edit_number(sealed, 24, SEALED_UNIX_S + far)


def another_epoch(dice: random.Random, sealed: bytes) -> bytes:
    """Claim an epoch that is not the key's."""
    epoch = int.from_bytes(sealed[16:24], "big")
    return edit_number(sealed, 16, dice.choice([(epoch + 1) % 2**64, epoch ^ 1, 2**63 - 1]))


def another_version(dice: random.Random, sealed: bytes) -> bytes:
    """Claim a format that does not exist, or no longer."""
    return edit(sealed, 4, bytes([dice.choice([0, 2, 255])]))


def another_suite(dice: random.Random, sealed: bytes) -> bytes:
    """Claim an algorithm that does not exist: none, or another."""
    return edit(sealed, 5, bytes([dice.choice([0, 2, 127, 255])]))


def reserved_in_use(dice: random.Random, sealed: bytes) -> bytes:
    """Use the reserved bytes."""
    return edit(sealed, 6, dice.randrange(1, 1 << 16).to_bytes(2, "big"))


def absurd_length(dice: random.Random, sealed: bytes) -> bytes:
    """Claim a length that would need gigabytes, or wrap around."""
    length = dice.choice([0, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - OVERHEAD_BYTES, 2**64 - 1])
    return edit_number(sealed, 32, length)


def change_the_body(dice: random.Random, sealed: bytes) -> bytes:
    """Replace the ciphertext under its header and its tag."""
    size = len(sealed) - OVERHEAD_BYTES
    return edit(sealed, HEADER_BYTES, dice.randbytes(size))


def no_tag(dice: random.Random, sealed: bytes) -> bytes:
    """Replace the tag by a constant or a guess."""
    tag = dice.choice([bytes(16), b"\xff" * 16, dice.randbytes(16), sealed[64:80]])
    return sealed[:-_TAG_BYTES] + tag


def shuffle_the_body(dice: random.Random, sealed: bytes) -> bytes:
    """Move ciphertext blocks of 16 bytes around."""
    whole = range(HEADER_BYTES, len(sealed) - _TAG_BYTES, 16)
    one, other = dice.sample(whole, 2)
    changed = edit(sealed, one, sealed[other : other + 16])
    return edit(changed, other, sealed[one : one + 16])


def random_bytes(dice: random.Random, sealed: bytes) -> bytes:
    """Answer with noise of the right length."""
    return b"\0" + dice.randbytes(len(sealed) - 1)


def random_length_and_bytes(dice: random.Random, sealed: bytes) -> bytes:
    """Answer with noise of any length."""
    return b"\0" + dice.randbytes(dice.randrange(2 * len(sealed)))


def perfect_header(dice: random.Random, sealed: bytes) -> bytes:
    """Answer with noise under a header in which everything is right."""
    return sealed[:BOUND_BYTES] + dice.randbytes(len(sealed) - BOUND_BYTES)


def all_zero(_: random.Random, sealed: bytes) -> bytes:
    """Answer with a hole of the right length."""
    return bytes(len(sealed))


class _Command:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return exec, ("raise SystemExit('a pickle was loaded')",)


_PICKLE = pickle.dumps(_Command())


def a_pickle(_: random.Random, sealed: bytes) -> bytes:
    """Answer with a pickle that ends the process if anybody loads it."""
    return _PICKLE.ljust(len(sealed), b".")


def safetensors(_: random.Random, sealed: bytes) -> bytes:
    """Answer with the start of another serving system's file."""
    size = len(sealed)
    header = json.dumps({"kv": {"dtype": "F16", "shape": [size], "data_offsets": [0, size]}})
    return (struct.pack("<Q", len(header)) + header.encode()).ljust(size, b"\0")


def zipped(_: random.Random, sealed: bytes) -> bytes:
    """Answer with the same block compressed, or a bomb."""
    return zlib.compress(sealed + bytes(1 << 16))


def havoc(dice: random.Random, sealed: bytes) -> bytes:
    """Do several things at once."""
    changed = sealed
    while changed == sealed:
        for _ in range(dice.randrange(1, 5)):
            damage = dice.choice(_STACKED)
            if len(changed) >= OVERHEAD_BYTES + 32:
                changed = damage(dice, changed)
    return changed


_STACKED: tuple[Damage, ...] = (
    lambda dice, sealed: flip(dice, sealed, 0, 0),
    lambda dice, sealed: edit(
        sealed, dice.randrange(len(sealed) - 8), dice.choice([bytes(8), b"\xff" * 8])
    ),
    lambda dice, sealed: edit(sealed, dice.randrange(len(sealed) - 8), dice.randbytes(8)),
    shuffle_the_body,
    cut_and_say_so,
    grow_and_say_so,
    a_little_younger,
    another_epoch,
)

_DAMAGES: list[tuple[str, Damage, tuple[OpenRefusal, ...]]] = [
    ("cut to 0 bytes", lambda _, sealed: sealed[:0], (R.TOO_SHORT,)),
    ("cut to 1 byte", lambda _, sealed: sealed[:1], (R.TOO_SHORT,)),
    ("cut inside the header", cut_inside_the_header, (R.TOO_SHORT,)),
    ("cut to the header", lambda _, sealed: sealed[:HEADER_BYTES], (R.TOO_SHORT,)),
    ("cut to one byte less than header and tag", lambda _, s: s[: OVERHEAD_BYTES - 1],
     (R.TOO_SHORT,)),
    ("cut to the length of header and tag", lambda _, s: s[:OVERHEAD_BYTES], (R.LENGTH,)),
    ("cut by 1 byte", lambda _, sealed: sealed[:-1], (R.LENGTH,)),
    ("cut by the tag", lambda _, sealed: sealed[:-_TAG_BYTES], (R.LENGTH,)),
    ("cut to the half", lambda _, sealed: sealed[: len(sealed) // 2], (R.LENGTH,)),
    ("cut anywhere", cut_anywhere, (R.LENGTH, R.TOO_SHORT)),
    ("cut, and the header says so", cut_and_say_so, (R.LENGTH,)),
    ("the front lost", cut_the_front, (R.NOT_A_BLOCK,)),
    ("torn", tear, (R.NOT_AUTHENTIC,)),
    ("grown by 1 byte", lambda _, sealed: sealed + b"\0", (R.LENGTH,)),
    ("grown by a tag", lambda _, sealed: sealed + sealed[-_TAG_BYTES:], (R.LENGTH,)),
    ("the same twice", lambda _, sealed: sealed + sealed, (R.LENGTH,)),
    ("grown, and the header says so", grow_and_say_so, (R.LENGTH,)),
    ("created: older than its age", older_than_its_age, (R.EXPIRED,)),
    ("created: a little older", a_little_older, (R.NOT_AUTHENTIC,)),
    ("created: a little younger", a_little_younger, (R.NOT_AUTHENTIC,)),
    ("created: in the future", from_the_future, (R.FROM_THE_FUTURE,)),
    ("epoch: another", another_epoch, (R.EPOCH,)),
    ("version: another", another_version, (R.VERSION,)),
    ("suite: another", another_suite, (R.SUITE,)),
    ("reserved bytes: in use", reserved_in_use, (R.RESERVED,)),
    ("length: absurd", absurd_length, (R.LENGTH,)),
    ("body: noise", change_the_body, (R.NOT_AUTHENTIC,)),
    ("body: shuffled", shuffle_the_body, (R.NOT_AUTHENTIC,)),
    ("tag: a constant or a guess", no_tag, (R.NOT_AUTHENTIC,)),
    ("noise", random_bytes, (R.NOT_A_BLOCK,)),
    ("noise of any length", random_length_and_bytes, (R.NOT_A_BLOCK, R.TOO_SHORT)),
    ("noise under a perfect header", perfect_header, (R.NOT_AUTHENTIC,)),
    ("zeros", all_zero, (R.NOT_A_BLOCK,)),
    ("another format: pickle", a_pickle, (R.NOT_A_BLOCK,)),
    ("another format: safetensors", safetensors, (R.NOT_A_BLOCK,)),
    ("another format: zlib", zipped, (R.NOT_A_BLOCK,)),
    ("several at once", havoc, tuple(R)),
]  # fmt: skip


def iter_damages() -> Iterator[Mutation]:
    """Yield all mutations of this module."""
    for field, (first, end, reasons) in _FIELDS.items():
        yield _damage(f"bit of the {field}", _flipping(first, end), reasons)
    for label, damage, reasons in _DAMAGES:
        yield _damage(label, damage, reasons)


def _flipping(first: int, end: int) -> Damage:
    return lambda dice, sealed: flip(dice, sealed, first, end)


def _damage(label: str, damage: Damage, reasons: tuple[OpenRefusal, ...]) -> Mutation:
    def forge(dice: random.Random, _: World, block: Block) -> list[Laid]:
        return lay(
            block,
            {place: damage(dice, block.sealed[place]) for place in some_places(dice, block)},
        )

    return Mutation(label=label, fate=Fate.REFUSED, reasons=frozenset(reasons), forge=forge)
