"""Mutations that answer with genuine bytes of somewhere else, whole or spliced."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from attacks.hostile_state.damage import edit
from attacks.hostile_state.mutation import Fate, Laid, Mutation, lay, lay_instead, some_places
from attacks.hostile_state.world import (
    CONVERSATIONS,
    LAYOUTS,
    NUM_POSITIONS,
    ROTATED,
    Block,
    World,
)
from kvward.scope import SealKey
from kvward.seal import OVERHEAD_BYTES, BlockSealer, OpenRefusal
from kvward.seal.header import BOUND_BYTES, HEADER_BYTES

R = OpenRefusal
Other = Callable[[random.Random, World, Block], Block]
Splice = Callable[[bytes, bytes], bytes]
_TAG_BYTES = 16


def another_position(dice: random.Random, world: World, block: Block) -> Block:
    """Return the same prompt's block at another position."""
    step = dice.randrange(1, NUM_POSITIONS)
    return world.like(block, position=(block.identity.position + step) % NUM_POSITIONS)


def another_model(_: random.Random, world: World, block: Block) -> Block:
    """Return the same prompt's block by another version of the engine."""
    return world.like(block, model=1 - block.identity.model)


def another_conversation(dice: random.Random, world: World, block: Block) -> Block:
    """Return the same block of the same tenant's other conversation."""
    others = [number for number in CONVERSATIONS if number != block.identity.conversation]
    return world.like(block, conversation=dice.choice(others))


def another_tenant(dice: random.Random, world: World, block: Block) -> Block:
    """Return the same block of another tenant."""
    others = [tenant for tenant in ROTATED if tenant != block.identity.tenant]
    return world.like(block, tenant=dice.choice(others))


def another_layout(_: random.Random, world: World, block: Block) -> Block:
    """Return the same block in a layout of the same name and lengths."""
    return world.like(block, layout={"half": "brain", "brain": "half"}[block.identity.layout])


def another_cut(dice: random.Random, world: World, block: Block) -> Block:
    """Return the same block cut into other parts."""
    is_cut = block.identity.layout == "ranks"
    return world.like(block, layout=dice.choice(["half", "brain"]) if is_cut else "ranks")


def another_epoch(_: random.Random, world: World, block: Block) -> Block:
    """Return the same block of the other side of a rotation."""
    return world.like(block, generation=1 - block.identity.generation)


def another_deployment(_: random.Random, world: World, block: Block) -> Block:
    """Return the same tenant's block in a deployment with another root key."""
    there = "here" if block.identity.deployment == "elsewhere" else "elsewhere"
    return world.like(block, deployment=there, generation=0)


def same_header(ours: bytes, other: bytes) -> bytes:
    """Put our header's claims before another's nonce, body and tag."""
    return ours[:BOUND_BYTES] + other[BOUND_BYTES:]


def same_header_and_nonce(ours: bytes, other: bytes) -> bytes:
    """Put our header before another's body and tag."""
    return ours[:HEADER_BYTES] + other[HEADER_BYTES:]


def other_header(ours: bytes, other: bytes) -> bytes:
    """Put another's header before our body and tag."""
    return other[:HEADER_BYTES] + ours[HEADER_BYTES:]


def other_body(ours: bytes, other: bytes) -> bytes:
    """Put another's body between our header and our tag."""
    return ours[:HEADER_BYTES] + other[HEADER_BYTES:-_TAG_BYTES] + ours[-_TAG_BYTES:]


def other_tag(ours: bytes, other: bytes) -> bytes:
    """Put another's tag after our body."""
    return ours[:-_TAG_BYTES] + other[-_TAG_BYTES:]


def half_and_half(ours: bytes, other: bytes) -> bytes:
    """Tear between two blocks, as two writers at once do."""
    middle = (HEADER_BYTES + len(ours)) // 2
    return ours[:middle] + other[middle:]


def both(ours: bytes, other: bytes) -> bytes:
    """Answer with two blocks, ours first."""
    return ours + other


def other_epoch_claimed(ours: bytes, other: bytes) -> bytes:
    """Claim our epoch for a block of another."""
    return edit(other, 16, ours[16:24])


def other_key_claimed(ours: bytes, other: bytes) -> bytes:
    """Claim our key for a block of another."""
    return edit(other, 8, ours[8:16])


_SPLICES: list[tuple[str, Splice, tuple[OpenRefusal, ...]]] = [
    ("body and nonce of another", same_header, (R.NOT_AUTHENTIC,)),
    ("body and tag of another", same_header_and_nonce, (R.NOT_AUTHENTIC,)),
    ("body of another", other_body, (R.NOT_AUTHENTIC,)),
    ("tag of another", other_tag, (R.NOT_AUTHENTIC,)),
    ("half of another", half_and_half, (R.NOT_AUTHENTIC,)),
    ("another behind it", both, (R.LENGTH,)),
]


def rotated_parts(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Give every rank the part of another."""
    step = dice.randrange(1, len(block.sealed))
    return lay_instead(block, block.sealed[step:] + block.sealed[:step])


def two_parts_exchanged(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Exchange the parts of two ranks."""
    one, other = dice.sample(range(len(block.sealed)), 2)
    return lay(block, {one: block.sealed[other], other: block.sealed[one]})


def one_part_for_all(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Give all ranks one rank's part, which is bad for all but that one."""
    kept = dice.randrange(len(block.sealed))
    return lay(
        block,
        {place: block.sealed[kept] for place in range(len(block.sealed)) if place != kept},
    )


def plaintext_known(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Forge with known plaintext: the key stream is known, so any ciphertext can be made."""
    forged = {}
    for place in some_places(dice, block):
        sealed, plain = block.sealed[place], block.plain[place]
        wanted = dice.randbytes(len(plain))
        stream = int.from_bytes(sealed[HEADER_BYTES:-_TAG_BYTES], "big") ^ int.from_bytes(
            plain, "big"
        )
        body = (stream ^ int.from_bytes(wanted, "big")).to_bytes(len(plain), "big")
        forged[place] = edit(sealed, HEADER_BYTES, body)
    return lay(block, forged)


def plaintext_as_it_is(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Put plaintext where ciphertext belongs."""
    return lay(
        block,
        {
            place: edit(block.sealed[place], HEADER_BYTES, block.plain[place])
            for place in some_places(dice, block)
        },
    )


def _sealed_by_an_attacker(dice: random.Random, block: Block, place: int) -> bytes:
    """Seal bytes with the product's own sealer, under a key that is the attacker's."""
    sealed = block.sealed[place]
    sealer = BlockSealer(SealKey(b"attacker" * 4), epoch=int.from_bytes(sealed[16:24], "big"))
    out = bytearray(len(sealed))
    name = block.names[place]
    sealer.seal_into(
        dice.randbytes(len(sealed) - OVERHEAD_BYTES),
        memoryview(out),
        name=name.tenant + name.scope + name.name,
        layout_digest=LAYOUTS[block.identity.layout].digest,
        created_unix_s=int.from_bytes(sealed[24:32], "big"),
        nonce=dice.randbytes(24),
    )
    return bytes(out)


def attackers_key(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Seal under a key of one's own for exactly this place, and say so."""
    return lay(
        block,
        {place: _sealed_by_an_attacker(dice, block, place) for place in some_places(dice, block)},
    )


def attackers_key_disguised(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Seal under a key of one's own, and claim the scope's."""
    return lay(
        block,
        {
            place: other_key_claimed(
                block.sealed[place], _sealed_by_an_attacker(dice, block, place)
            )
            for place in some_places(dice, block)
        },
    )


def iter_moves() -> Iterator[Mutation]:
    """Yield all mutations of this module."""
    wholes: list[tuple[str, Other, tuple[OpenRefusal, ...]]] = [
        ("position", another_position, (R.NOT_AUTHENTIC,)),
        ("model", another_model, (R.NOT_AUTHENTIC,)),
        ("conversation", another_conversation, (R.KEY,)),
        ("tenant", another_tenant, (R.KEY,)),
        ("cut", another_cut, (R.LENGTH,)),
        ("epoch", another_epoch, (R.EPOCH,)),
    ]
    for label, other, reasons in wholes:
        yield _move(f"of another {label}", other, None, reasons)
        if label != "cut":
            yield _move(f"of another {label}, our header", other, same_header, (R.NOT_AUTHENTIC,))
            for splice, change, why in _SPLICES:
                yield _move(f"another {label}: {splice}", other, change, why)
    # Both headers are equal but for the nonce where the key is the same: nothing to refuse early.
    yield _move("another position: header of another", another_position, other_header,
                (R.NOT_AUTHENTIC,))  # fmt: skip
    yield _move("another tenant: header of another", another_tenant, other_header, (R.KEY,))
    yield _move("another epoch: our epoch claimed", another_epoch, other_epoch_claimed, (R.KEY,))
    yield _move("another epoch: our key claimed", another_epoch, other_key_claimed, (R.EPOCH,))
    yield _move("another tenant: our key claimed", another_tenant, other_key_claimed,
                (R.NOT_AUTHENTIC,))  # fmt: skip
    yield _move("of another layout", another_layout, None, (R.NOT_AUTHENTIC,), readers=("alike",))
    yield _move("of another layout, our header", another_layout, same_header,
                (R.NOT_AUTHENTIC,), readers=("alike",))  # fmt: skip
    yield _move("of another deployment", another_deployment, None, (R.KEY,), readers=("elsewhere",))
    yield _move("of another deployment, our header", another_deployment, same_header,
                (R.NOT_AUTHENTIC,), readers=("elsewhere",))  # fmt: skip
    for label, forge in [
        ("parts of every rank rotated", rotated_parts),
        ("parts of two ranks exchanged", two_parts_exchanged),
        ("part of one rank for all", one_part_for_all),
    ]:
        yield Mutation(label=label, fate=Fate.REFUSED, reasons=frozenset({R.NOT_AUTHENTIC}),
                       forge=forge, readers=("cut",))  # fmt: skip
    for label, forge, reason in [
        ("forged with known plaintext", plaintext_known, R.NOT_AUTHENTIC),
        ("plaintext for ciphertext", plaintext_as_it_is, R.NOT_AUTHENTIC),
        ("sealed under an attacker's key", attackers_key, R.KEY),
        ("sealed under an attacker's key, disguised", attackers_key_disguised, R.NOT_AUTHENTIC),
    ]:
        yield Mutation(label=label, fate=Fate.REFUSED, reasons=frozenset({reason}), forge=forge)


def _move(
    label: str,
    find: Other,
    splice: Splice | None,
    reasons: tuple[OpenRefusal, ...],
    *,
    readers: tuple[str, ...] = ("readers", "ranks"),
) -> Mutation:
    def forge(dice: random.Random, world: World, block: Block) -> list[Laid]:
        other = find(dice, world, block).sealed
        places = some_places(dice, block)
        bring = [other[place % len(other)] for place in range(len(block.sealed))]
        if splice is not None:
            return lay(
                block, {place: splice(block.sealed[place], bring[place]) for place in places}
            )
        return lay(block, {place: bring[place] for place in places})

    return Mutation(
        label=label, fate=Fate.REFUSED, reasons=frozenset(reasons), forge=forge, readers=readers
    )
