"""Lay mutated blocks before a store, batch after batch, and look at everything it does.

What must not happen:

* *accepted*: a block opened that must not, or opened with other bytes than the scope stored;
* *crashed*: an exception came out of the store;
* *not wiped*: memory of a block that did not open is not all zero;
* *not dropped*: what was refused is still in the backend; or *dropped*, but not refused;
* *miscounted*: refusals do not add up to what was bad, or an event says something else;
* *another reason*: a refusal was counted under a reason that cannot be;
* *claimed*: the store says that a block is there which it has just refused;
* *control lost*: a genuine block beside the mutated ones did not open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from attacks.hostile_state.damage import iter_damages
from attacks.hostile_state.deployment import SEALED_UNIX_S
from attacks.hostile_state.moves import iter_moves
from attacks.hostile_state.mutation import Fate, Laid, Mutation
from attacks.hostile_state.place import Place
from attacks.hostile_state.replay import iter_replays
from attacks.hostile_state.report import Report, Row
from attacks.hostile_state.world import LAYOUTS, MODELS, NUM_POSITIONS, Block, Group, World
from kvward.events import EventCounter
from kvward.store.sealed import SealedStore

_SLOTS = len(MODELS) * NUM_POSITIONS
_CONTROLS = 2
_ASKED = 0.2
_REFUSED = "store.refused:"


def iter_mutations() -> Iterator[Mutation]:
    """Yield every kind of mutation there is."""
    yield from iter_damages()
    yield from iter_moves()
    yield from iter_replays()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One call of `load`.

    Attributes:
        blocks: Mutated ones first, then genuine ones.
        laid: For each block what the backend answers.
        num_mutated: How many of them are mutated.
    """

    mutation: Mutation
    group: Group
    blocks: Sequence[Block]
    laid: Sequence[Sequence[Laid]]
    num_mutated: int


class Campaign:
    """A world, a place and a store between them.

    Args:
        seed: Of everything that is drawn, except nonces and keys.
        executor: Threads in which the store opens large batches.
    """

    def __init__(
        self, world: World, place: Place, *, seed: int, executor: Executor | None = None
    ) -> None:
        self._world = world
        self._place = place
        self._dice = random.Random(seed)
        self._events = EventCounter()
        self._stores: dict[tuple[str, str], SealedStore] = {
            (name, label): deployment.store(place.backend, layout, self._events, executor)
            for name, deployment in world.deployments.items()
            for label, layout in LAYOUTS.items()
        }

    def run(
        self, num_mutations: int, *, progress: Callable[[int], None] = lambda _: None
    ) -> Report:
        """Apply mutations of every kind in turn; return what became of them."""
        mutations = list(iter_mutations())
        report = Report(rows={mutation.label: Row(fate=mutation.fate) for mutation in mutations})
        applied = 0
        while applied < num_mutations:
            self._dice.shuffle(mutations)
            for mutation in mutations:
                if applied >= num_mutations:
                    break
                batch = self._draw(mutation, num_mutations - applied)
                self._judge(batch, report)
                applied += batch.num_mutated
                progress(applied)
        report.check_sums()
        return report

    def _draw(self, mutation: Mutation, at_most: int) -> _Batch:
        dice, world = self._dice, self._world
        group: Group = dice.choice(getattr(world, dice.choice(mutation.readers)))
        has_controls = mutation.clock_s == 0 and "ended" not in mutation.readers
        num_mutated = min(_SLOTS - _CONTROLS, at_most)
        num_blocks = num_mutated + (_CONTROLS if has_controls else 0)
        blocks: list[Block] = []
        laid: list[list[Laid]] = []
        for slot in dice.sample(range(_SLOTS), num_blocks):
            ages = [*group.blocks]
            wanted = mutation.generation
            age = dice.choice(ages) if wanted is None or len(blocks) >= num_mutated else wanted
            block = group.blocks[age][slot]
            is_mutated = len(blocks) < num_mutated
            blocks.append(block)
            laid.append(mutation.forge(dice, world, block) if is_mutated else _genuine(block))
        return _Batch(
            mutation=mutation, group=group, blocks=blocks, laid=laid, num_mutated=num_mutated
        )

    def _judge(self, batch: _Batch, report: Report) -> None:
        mutation, group = batch.mutation, batch.group
        entries = [entry for laid in batch.laid for entry in laid]
        self._place.lay((entry.name, entry.data) for entry in entries)
        store = self._stores[group.deployment, group.layout].scope(group.owner)
        hashes = [block.chain_hash for block in batch.blocks]
        block_bytes = sum(LAYOUTS[group.layout].part_bytes(part) for part in group.parts)
        # Whatever is not written to will show.
        staging = memoryview(bytearray(b"\xaa" * (block_bytes * len(hashes))))
        before = self._events.counts()
        self._world.clock.now_unix_s = float(SEALED_UNIX_S + mutation.clock_s)
        try:
            loaded = store.load(hashes, staging, parts=group.parts)
            # Now and then, because it costs as much as all the rest.
            is_asked = self._dice.random() < _ASKED
            claimed = store.contains(hashes) if is_asked else [False] * len(hashes)
        except Exception as exc:  # noqa: BLE001 - the attack's one guard: becomes a finding
            report.blame("crashed", f"{mutation.label}: {exc!r}")
            loaded = claimed = [False] * len(hashes)
        finally:
            self._world.clock.now_unix_s = float(SEALED_UNIX_S)
        memory = [
            bytes(staging[number * block_bytes : (number + 1) * block_bytes])
            for number in range(len(hashes))
        ]
        self._count(batch, report, loaded, _difference(before, self._events.counts()))
        self._look(batch, report, loaded, memory)
        self._look_behind(batch, report, entries, claimed)

    def _count(
        self, batch: _Batch, report: Report, loaded: Sequence[bool], events: dict[str, int]
    ) -> None:
        """Compare events with what had to be refused, and fill in the row."""
        mutation = batch.mutation
        row = report.rows[mutation.label]
        reasons = {
            name.removeprefix(_REFUSED): count
            for name, count in events.items()
            if name.startswith(_REFUSED)
        }
        row.applied += batch.num_mutated
        row.reasons.update(reasons)
        opened = sum(loaded[: batch.num_mutated])
        missed = batch.num_mutated - opened
        row.opened += opened
        if mutation.fate is Fate.INCOMPLETE:
            row.incomplete += missed
        elif mutation.fate is Fate.UNSEEN:
            row.unseen += missed
        elif events.get("store.refused", 0):
            row.refused += missed
        bad = sum(entry.is_bad for entry in _looked_at(batch))
        row.bad_parts += bad
        expected = {
            "store.refused": bad,
            "store.incomplete": mutation.num_incomplete * batch.num_mutated,
        }
        whole = {name: count for name, count in events.items() if ":" not in name}
        if whole != {name: count for name, count in expected.items() if count}:
            report.blame("miscounted", f"{mutation.label}: {whole}, and should be {expected}")
        for reason in set(reasons) - {reason.value for reason in mutation.reasons}:
            report.blame("another reason", f"{mutation.label}: {reason}")

    def _look(
        self, batch: _Batch, report: Report, loaded: Sequence[bool], memory: Sequence[bytes]
    ) -> None:
        """Look at what the store returned and left in memory."""
        for number, block in enumerate(batch.blocks):
            is_control = number >= batch.num_mutated
            may_open = is_control or batch.mutation.fate is Fate.OPENS
            where = f"{batch.mutation.label}: {tuple(block.identity)}"
            if not loaded[number]:
                if any(memory[number]):
                    report.blame("not wiped", where)
                if may_open:
                    report.blame("control lost" if is_control else "not opened", where)
            elif not may_open:
                report.blame("accepted", where)
            elif memory[number] != b"".join(block.plain):
                report.blame("accepted", f"{where}, other bytes")
            report.controls += is_control and loaded[number]

    def _look_behind(
        self, batch: _Batch, report: Report, entries: Sequence[Laid], claimed: Sequence[bool]
    ) -> None:
        """Look at what the backend still has, and clear it."""
        backend = self._place.backend
        names = [entry.name for entry in entries]
        bad = {entry.name for entry in _looked_at(batch) if entry.is_bad}
        for name, is_there in zip(names, backend.contains_many(names), strict=True):
            if is_there == (name in bad):
                what = "not dropped" if is_there else "dropped, but not refused"
                report.blame(what, batch.mutation.label)
        may_be_there = batch.mutation.fate is Fate.OPENS
        for number in range(batch.num_mutated):
            if claimed[number] and not may_be_there:
                report.blame("claimed", batch.mutation.label)
        backend.delete_many(names)


def _looked_at(batch: _Batch) -> Iterable[Laid]:
    """Yield what the reader has looked at and opened, or not."""
    if batch.mutation.fate in {Fate.REFUSED, Fate.OPENS}:
        for laid in batch.laid:
            yield from laid


def _genuine(block: Block) -> list[Laid]:
    return [
        Laid(name, data, is_bad=False) for name, data in zip(block.names, block.sealed, strict=True)
    ]


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {
        name: count - before.get(name, 0)
        for name, count in after.items()
        if count != before.get(name, 0)
    }
