"""Mutations in time: what was erased, retired, expired or half written comes back."""

from __future__ import annotations

import random
from collections.abc import Iterator

from attacks.hostile_state.damage import edit, edit_number, flip
from attacks.hostile_state.deployment import LIMITS, SEALED_UNIX_S
from attacks.hostile_state.moves import other_epoch_claimed, same_header
from attacks.hostile_state.mutation import Fate, Forge, Laid, Mutation, lay, lay_instead
from attacks.hostile_state.world import Block, World
from kvward.seal import OpenRefusal

R = OpenRefusal
_JUST_EXPIRED_S = LIMITS.max_age_s + 1
_LONG_EXPIRED_S = LIMITS.max_age_s * 2


def as_it_was(_: random.Random, __: World, block: Block) -> list[Laid]:
    """Answer with a genuine block, where somebody must not see or open it any more."""
    return lay_instead(block, block.sealed)


def older_sealing(_: random.Random, __: World, block: Block) -> list[Laid]:
    """Answer with an earlier sealing of the same block by the same scope in the same epoch."""
    return [
        Laid(name, data, is_bad=False) for name, data in zip(block.names, block.older, strict=True)
    ]


def older_sealing_of_some_parts(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Mix two sealings of the same block: the name commits to the content, so they say the same."""
    return [
        Laid(name, dice.choice(data), is_bad=False)
        for name, *data in zip(block.names, block.sealed, block.older, strict=True)
    ]


def of_before(_: random.Random, world: World, block: Block) -> list[Laid]:
    """Put what was sealed before an erasure where the reader looks for what came after."""
    return lay_instead(block, world.like(block, generation=0).sealed)


def of_before_at_its_place(_: random.Random, world: World, block: Block) -> list[Laid]:
    """Put what was sealed before an erasure back where it was."""
    before = world.like(block, generation=0)
    return lay_instead(before, before.sealed)


def of_before_our_epoch_claimed(_: random.Random, world: World, block: Block) -> list[Laid]:
    """Claim that it was sealed in the new epoch."""
    before = world.like(block, generation=0).sealed
    pairs = zip(block.sealed, before, strict=True)
    return lay_instead(block, [other_epoch_claimed(ours, old) for ours, old in pairs])


def of_before_our_header(_: random.Random, world: World, block: Block) -> list[Laid]:
    """Claim everything that a new block would."""
    before = world.like(block, generation=0).sealed
    pairs = zip(block.sealed, before, strict=True)
    return lay_instead(block, [same_header(ours, old) for ours, old in pairs])


def newer_than_the_token(_: random.Random, world: World, block: Block) -> list[Laid]:
    """Put what was sealed after a rotation where a reader with an older token looks."""
    return lay_instead(block, world.like(block, generation=1).sealed)


def newer_than_the_token_at_its_place(_: random.Random, world: World, block: Block) -> list[Laid]:
    """Leave what was sealed after a rotation at its place: an older token does not reach it."""
    after = world.like(block, generation=1)
    return lay_instead(after, after.sealed)


def made_young_again(_: random.Random, __: World, block: Block) -> list[Laid]:
    """Write the present time into what has expired."""
    now = SEALED_UNIX_S + _JUST_EXPIRED_S
    return lay_instead(block, [edit_number(sealed, 24, now) for sealed in block.sealed])


def some_parts_missing(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Lose some parts, and not all."""
    kept = dice.sample(range(len(block.names)), dice.randrange(1, len(block.names)))
    return [Laid(block.names[place], block.sealed[place], is_bad=False) for place in kept]


def all_parts_missing(_: random.Random, __: World, ___: Block) -> list[Laid]:
    """Lose the block."""
    return []


def some_missing_and_one_damaged(dice: random.Random, world: World, block: Block) -> list[Laid]:
    """Lose some parts and damage another."""
    first, *rest = some_parts_missing(dice, world, block)
    return [first._replace(data=flip(dice, first.data, 0, 0)), *rest]


def spread_over_epochs(dice: random.Random, world: World, block: Block) -> list[Laid]:
    """Have some ranks' parts in the new epoch only and the others' in the old one only."""
    before = world.like(block, generation=0)
    here = set(dice.sample(range(len(block.names)), dice.randrange(1, len(block.names))))
    return [
        Laid(source.names[place], source.sealed[place], is_bad=False)
        for place in range(len(block.names))
        for source in [block if place in here else before]
    ]


def parts_of_another_epoch(dice: random.Random, world: World, block: Block) -> list[Laid]:
    """Fill the gaps of a half written block with parts of before the rotation."""
    before = world.like(block, generation=0)
    lost = dice.sample(range(len(block.names)), dice.randrange(1, len(block.names)))
    return lay(block, {place: before.sealed[place] for place in lost})


def parts_of_another_block(dice: random.Random, world: World, block: Block) -> list[Laid]:
    """Fill the gaps of a half written block with parts of the same block by another model."""
    other = world.like(block, model=1 - block.identity.model)
    lost = dice.sample(range(len(block.names)), dice.randrange(1, len(block.names)))
    return lay(block, {place: other.sealed[place] for place in lost})


def empty_parts(dice: random.Random, _: World, block: Block) -> list[Laid]:
    """Have some parts there and empty, as files that were made and never written are."""
    lost = dice.sample(range(len(block.names)), dice.randrange(1, len(block.names) + 1))
    return lay(block, dict.fromkeys(lost, b""))


def damaged_beside_the_old_epoch(dice: random.Random, world: World, block: Block) -> list[Laid]:
    """Damage a block that is there in the old epoch as well: that one is served, and is whole."""
    before = world.like(block, generation=0)
    bad = dice.randrange(len(block.names))
    damaged = flip(dice, block.sealed[bad], 40, 0)
    good = [
        Laid(name, data, is_bad=False)
        for name, data in zip(before.names, before.sealed, strict=True)
    ]
    return [*lay(block, {bad: damaged}), *good]


def downgraded_key(_: random.Random, __: World, block: Block) -> list[Laid]:
    """Blank everything that names a key or an epoch."""
    return lay_instead(block, [edit(sealed, 8, bytes(16)) for sealed in block.sealed])


_AGAIN = ("begun_again",)
_CUT = ("cut",)


def iter_replays() -> Iterator[Mutation]:
    """Yield all mutations of this module."""
    yield _seen("erased or retired: under the new name", of_before, R.EPOCH, _AGAIN)
    yield _seen("erased or retired: new epoch claimed", of_before_our_epoch_claimed, R.KEY, _AGAIN)
    yield _seen("erased or retired: new header", of_before_our_header, R.NOT_AUTHENTIC, _AGAIN)
    yield _unseen("erased or retired: back at its place", of_before_at_its_place, _AGAIN)
    yield _unseen("erased or retired: by an old token", as_it_was, ("ended",))
    yield _seen("newer than the token", newer_than_the_token, R.EPOCH, ("old_tokens",))
    yield _unseen(
        "newer than the token, at its place", newer_than_the_token_at_its_place, ("old_tokens",)
    )
    yield _at("expired", as_it_was, R.EXPIRED, _JUST_EXPIRED_S)
    yield _at("expired, made young again", made_young_again, R.NOT_AUTHENTIC, _JUST_EXPIRED_S)
    yield Mutation(
        label="expired long ago", fate=Fate.UNSEEN, reasons=frozenset(), forge=as_it_was,
        clock_s=_LONG_EXPIRED_S,
    )  # fmt: skip
    yield _at("reader's clock behind", as_it_was, R.FROM_THE_FUTURE, -LIMITS.clock_skew_s - 1)
    yield _seen("key and epoch blanked", downgraded_key, R.EPOCH, ("readers", "ranks"),
                generation=1)  # fmt: skip
    yield _incomplete("some parts missing", some_parts_missing, 1)
    yield _incomplete("some parts missing, one damaged", some_missing_and_one_damaged, 1)
    yield _incomplete("parts spread over epochs", spread_over_epochs, 2, generation=1)
    yield _unseen("all parts missing", all_parts_missing, ("readers", "ranks"))
    yield _seen("gaps filled from another epoch", parts_of_another_epoch, R.EPOCH, _CUT,
                generation=1)  # fmt: skip
    yield _seen("gaps filled from another model", parts_of_another_block, R.NOT_AUTHENTIC, _CUT)
    yield _seen("gaps filled with nothing", empty_parts, R.TOO_SHORT, _CUT)
    yield Mutation(
        label="by design: an older sealing", fate=Fate.OPENS, reasons=frozenset(),
        forge=older_sealing,
    )  # fmt: skip
    yield Mutation(
        label="by design: parts of two sealings", fate=Fate.OPENS, reasons=frozenset(),
        forge=older_sealing_of_some_parts, readers=_CUT,
    )  # fmt: skip
    yield Mutation(
        label="by design: whole in the old epoch", fate=Fate.OPENS,
        reasons=frozenset({R.NOT_AUTHENTIC}), forge=damaged_beside_the_old_epoch, generation=1,
    )  # fmt: skip


def _seen(
    label: str,
    forge: Forge,
    reason: OpenRefusal,
    readers: tuple[str, ...],
    generation: int | None = None,
) -> Mutation:
    return Mutation(
        label=label, fate=Fate.REFUSED, reasons=frozenset({reason}), forge=forge, readers=readers,
        generation=generation,
    )  # fmt: skip


def _at(label: str, forge: Forge, reason: OpenRefusal, clock_s: int) -> Mutation:
    return Mutation(
        label=label, fate=Fate.REFUSED, reasons=frozenset({reason}), forge=forge, clock_s=clock_s
    )


def _unseen(label: str, forge: Forge, readers: tuple[str, ...]) -> Mutation:
    return Mutation(
        label=label, fate=Fate.UNSEEN, reasons=frozenset(), forge=forge, readers=readers
    )


def _incomplete(
    label: str, forge: Forge, num_incomplete: int, generation: int | None = None
) -> Mutation:
    return Mutation(
        label=label, fate=Fate.INCOMPLETE, reasons=frozenset(), forge=forge, readers=_CUT,
        generation=generation, num_incomplete=num_incomplete,
    )  # fmt: skip
