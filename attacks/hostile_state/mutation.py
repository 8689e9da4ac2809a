"""What a mutation is: a small function, and what a sealed store must make of its outcome."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from attacks.hostile_state.world import Block, World
from kvward.seal import OpenRefusal
from kvward.store.backend import EntryName


class Fate(StrEnum):
    """What must become of a block."""

    REFUSED = "refused"
    """Looked at, refused, counted and dropped."""
    INCOMPLETE = "incomplete"
    """Counted as having too few parts, and left."""
    UNSEEN = "unseen"
    """There is no key to look for it with."""
    OPENS = "opens"
    """By design: what opens is what the scope itself stored under this name."""


class Laid(NamedTuple):
    """Bytes that the backend will answer for a name, and whether they must be refused there."""

    name: EntryName
    data: bytes
    is_bad: bool


Forge = Callable[[random.Random, World, Block], list[Laid]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One way to answer with what must not open.

    Attributes:
        reasons: Which of them a refusal may be counted under.
        readers: Which groups of the world's readers it is tried on.
        generation: Whether blocks of before (0) or after (1) the world moved on; None for either.
        clock_s: By how much the reader's clock runs ahead.
        num_incomplete: How often a block is counted as incomplete, once for each epoch.
    """

    label: str
    fate: Fate
    reasons: frozenset[OpenRefusal]
    forge: Forge
    readers: tuple[str, ...] = ("readers", "ranks")
    generation: int | None = None
    clock_s: int = 0
    num_incomplete: int = 0


def some_places(dice: random.Random, block: Block) -> Sequence[int]:
    """Return one part of a block, or all of them, by number."""
    everything = range(len(block.names))
    return everything if dice.random() < 0.5 else [dice.choice(everything)]


def lay(block: Block, forged: dict[int, bytes]) -> list[Laid]:
    """Lay a block where it belongs, with some parts forged."""
    return [
        Laid(name, forged.get(place, data), place in forged)
        for place, (name, data) in enumerate(zip(block.names, block.sealed, strict=True))
    ]


def lay_instead(block: Block, other: Sequence[bytes]) -> list[Laid]:
    """Lay other bytes where a block belongs, one after the other if there are fewer."""
    return [
        Laid(name, other[place % len(other)], is_bad=True) for place, name in enumerate(block.names)
    ]
