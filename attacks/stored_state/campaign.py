"""Mutate, read as the owner would, judge what came back, put the honest bytes there again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from attacks.stored_state.mutations import Case, Mutation, all_mutations
from attacks.stored_state.world import LAYOUTS, Item, World
from kvward.store import EntryName


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a campaign saw.

    Attributes:
        applied: How often each mutation was tried.
        reasons: For each mutation, why the parts were refused, as counted inside.
        accepted: What was accepted and should not have been, in words; must be empty.
        crashed: Exceptions that came out; must be empty.
        unexplained: Anything else that is not as it should be; must be empty.
    """

    applied: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    accepted: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)

    @property
    def num_applied(self) -> int:
        """Return how many mutations were tried."""
        return self.applied.total()

    @property
    def num_refused(self) -> int:
        """Return how many parts were refused, as counted inside."""
        return sum(found.total() for found in self.reasons.values())

    @property
    def failed(self) -> bool:
        """Tell whether the attack won."""
        return bool(self.accepted or self.crashed or self.unexplained)


class Campaign:
    """Attacks one world for as long as it is told to."""

    def __init__(self, world: World, *, seed: int) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._mutations = all_mutations()
        self._groups = [
            list(group)
            for _, group in groupby(
                sorted(world.items, key=_readable_together), key=_readable_together
            )
        ]
        self.tally = Tally()

    def run(self, num_mutations: int, *, progress: Callable[[int], None]) -> Tally:
        """Apply that many mutations, a group of blocks at a time."""
        while self.tally.num_applied < num_mutations:
            self._attack(self._random.choice(self._groups))
            progress(self.tally.num_applied)
        return self.tally

    def _attack(self, group: Sequence[Item]) -> None:
        """Change one part of each block of a group, in one way, and read all of them at once."""
        mutation = self._random.choice(self._mutations)
        changed: list[Item] = []
        places: list[EntryName] = []
        for item in group:
            part = self._random.randrange(len(item.names))
            case = Case(world=self._world, item=item, part=part, random=self._random)
            data = mutation.change(case)
            if data is None or data == case.sealed:
                continue
            self._world.shelf.content[item.names[part]] = data
            changed.append(item)
            places.append(item.names[part])
        if changed:
            before = Counter(self._world.events.counts())
            self._read(changed, mutation)
            self._count(mutation, len(changed), Counter(self._world.events.counts()) - before)
            if any(place in self._world.shelf.content for place in places):
                self.tally.unexplained.append(f"{mutation.name}: what did not open is still there")
            for item in changed:
                for name in item.names:
                    self._world.shelf.content[name] = self._world.stored[name]

    def _read(self, items: Sequence[Item], mutation: Mutation) -> None:
        read(self._world, items, self.tally, what=mutation.name, layout=items[0].layout)

    def _count(self, mutation: Mutation, num_changed: int, events: Counter[str]) -> None:
        tally = self.tally
        tally.applied[mutation.name] += num_changed
        found = Counter(
            {
                name.partition(":")[2]: count
                for name, count in events.items()
                if name.startswith("store.refused:")
            }
        )
        tally.reasons.setdefault(mutation.name, Counter()).update(found)
        if found.total() != num_changed or events["store.refused"] != num_changed:
            tally.unexplained.append(
                f"{mutation.name}: {num_changed} applied, {found.total()} counted"
            )
        strange = set(found) - {reason.value for reason in mutation.reasons}
        if strange:
            tally.unexplained.append(f"{mutation.name}: refused as {', '.join(sorted(strange))}")


def read(world: World, items: Sequence[Item], tally: Tally, *, what: str, layout: str) -> None:
    """Read blocks that must not open, and judge what an observer outside can see."""
    size = LAYOUTS[layout].block_bytes
    staging = memoryview(bytearray(b"\xaa" * (size * len(items))))
    scope = world.store(layout).scope(items[0].owner)
    try:
        loaded = scope.load(
            [item.chain_hash for item in items], staging, parts=LAYOUTS[layout].parts
        )
    except Exception as exc:  # noqa: BLE001 - any exception at all is what is looked for
        tally.crashed.append(f"{what}: {exc!r}")
        return
    for place, (item, opened) in enumerate(zip(items, loaded, strict=True)):
        memory = staging[place * size : (place + 1) * size]
        if opened:
            right = "right" if bytes(memory) == item.plain else "wrong"
            tally.accepted.append(f"{what}: opened, with {right} content")
        elif any(memory):
            tally.accepted.append(f"{what}: refused, and left bytes behind")


def _readable_together(item: Item) -> tuple[int, int, int, str, int]:
    return item.tenant, item.conversation, item.model, item.layout, item.epoch
