"""The worker's half: only what has opened, in time, for a request that waits, reaches a page."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keyrings import owner
from kvward.adapters.vllm.transfers import LoadJob, PlacedBlock, StepPlan
from kvward.adapters.vllm.worker_side import LoadResults, WorkerSide
from kvward.events import EventCounter
from kvward.scope.owner import ScopeOwner
from kvward.testing.clocks import ManualClock
from two_tenants import BLOCK_BYTES, LAYOUT
from vllm_engine import FakePages, Ward

PENDING = 3 * BLOCK_BYTES
IDLE = StepPlan(is_idle=True)
EMPTY = bytes(BLOCK_BYTES)


def chain(number: int) -> bytes:
    return number.to_bytes(32, "big")


def content(number: int) -> bytes:
    return bytes([number + 1]) * BLOCK_BYTES


class Between:
    """Stands between the worker and a real store; may hold it up, or do something else."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.may_go = threading.Event()
        self.may_go.set()
        self.fault: Callable[[], object] | None = None
        self.staging: list[memoryview] = []

    def scope(self, whose: ScopeOwner) -> Any:
        scoped = self.store.scope(whose)

        def load(hashes: Sequence[bytes], staging: memoryview, *, parts: Any) -> list[bool]:
            self.staging.append(staging)
            assert self.may_go.wait(20)
            if self.fault is not None:
                self.fault()
            return list(scoped.load(hashes, staging, parts=parts))

        def save(hashes: Sequence[bytes], blocks: Any, *, parts: Any) -> list[bool]:
            assert self.may_go.wait(20)
            if self.fault is not None:
                self.fault()
            return list(scoped.save(hashes, blocks, parts=parts))

        return SimpleNamespace(load=load, save=save, contains=scoped.contains)


class World:
    def __init__(self, folder: Path) -> None:
        self.ward = Ward(folder=folder)
        self.store = Between(self.ward.store)
        self.pages, self.events, self.clock = FakePages(16), EventCounter(), ManualClock()
        self.worker = WorkerSide(
            self.store,  # type: ignore[arg-type]
            LAYOUT,
            self.pages,
            events=self.events,
            num_threads=2,
            load_s=1.0,
            pending_bytes=PENDING,
            monotonic_s=self.clock,
        )
        self.a, self.b = owner(self.ward.keyring, "a"), owner(self.ward.keyring, "b")

    def save(self, *numbers: int, whose: ScopeOwner | None = None) -> None:
        """Have blocks kept, each from the page of its number."""
        for number in numbers:
            self.pages.pages[number] = content(number)
        self.worker.save(
            StepPlan(saves=[placed(number, number, whose or self.a) for number in numbers])
        )

    def load(
        self, *numbers: int, at: int = 8, whose: ScopeOwner | None = None, request: str = "r"
    ) -> None:
        """Begin to load blocks into empty pages from `at` on."""
        blocks = [placed(n, at + place, whose or self.a) for place, n in enumerate(numbers)]
        self.worker.start_loads(StepPlan(loads=[LoadJob(request_id=request, blocks=tuple(blocks))]))

    def collect(self) -> LoadResults:
        """Return the first loads that end."""
        end = time.monotonic() + 20
        while not (results := self.worker.collect(IDLE)).request_ids:
            assert time.monotonic() < end
        return results

    def settle(self) -> None:
        end = time.monotonic() + 20
        while self.worker._room != PENDING:
            assert time.monotonic() < end, "room is lost"
            time.sleep(0.001)


def placed(number: int, block_id: int, whose: ScopeOwner) -> PlacedBlock:
    return PlacedBlock(owner=whose, chain_hash=chain(number), block_id=block_id)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.may_go.set()
    world.worker.close()
    world.ward.close()


def test_block_comes_back_as_it_was_into_the_pages_set_aside(world: World) -> None:
    world.save(0, 1, 2)
    world.settle()
    world.load(0, 1, 2)
    assert world.collect() == LoadResults(request_ids={"r"}, failed_block_ids=set())
    assert world.pages.pages[8:12] == [content(0), content(1), content(2), EMPTY]
    assert world.events.counts() == {"vllm.batch-kept": 1, "vllm.load-placed": 1}


def test_other_tenants_block_does_not_open(world: World) -> None:
    world.save(0)
    world.settle()
    world.load(0, whose=world.b)
    assert world.collect().failed_block_ids == {8}
    assert world.pages.scattered == []


def test_copy_is_taken_in_the_step_and_later_writes_do_not_change_it(world: World) -> None:
    world.store.may_go.clear()
    world.save(0)
    world.pages.pages[0] = content(9)
    world.store.may_go.set()
    world.settle()
    world.load(0)
    world.collect()
    assert world.pages.pages[8] == content(0)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_nothing_from_the_first_block_on_that_did_not_open_reaches_a_page(
    world: World, missing: int
) -> None:
    world.save(*(number for number in range(3) if number != missing))
    world.settle()
    world.load(0, 1, 2)
    results = world.collect()
    assert results.request_ids == {"r"}
    assert results.failed_block_ids == set(range(8 + missing, 11))
    expected = [content(n) if n < missing else EMPTY for n in range(3)]
    assert world.pages.pages[8:11] == expected
    assert world.pages.scattered == ([tuple(range(8, 8 + missing))] if missing else [])
    assert world.events.counts()["vllm.load-refused"] == 1


def test_changed_block_is_zero_in_staging_and_reaches_no_page(world: World) -> None:
    world.save(0, 1)
    world.settle()
    backend: Any = world.ward.backend
    for name, (data, expires) in list(backend._entries.items()):
        backend._entries[name] = (data[:-1] + bytes([data[-1] ^ 1]), expires)
    world.load(0, 1)
    assert world.collect().failed_block_ids == {8, 9}
    assert [bytes(staging) for staging in world.store.staging] == [EMPTY * 2]
    assert world.pages.scattered == []


def test_load_that_comes_too_late_writes_nothing(world: World) -> None:
    world.save(0)
    world.settle()
    world.store.may_go.clear()
    world.load(0)
    assert not world.worker.collect(IDLE).request_ids
    world.clock.advance(1.0)
    results = world.worker.collect(StepPlan())
    assert results == LoadResults(request_ids={"r"}, failed_block_ids={8})
    world.pages.pages[8] = content(5)  # somebody else's by now
    world.store.may_go.set()
    time.sleep(0.05)
    assert not world.worker.collect(IDLE).request_ids
    assert world.pages.pages[8] == content(5)
    assert world.events.counts()["vllm.load-late"] == 1
    assert world.pages.scattered == []


def test_load_that_never_began_is_taken_back_when_it_is_late(world: World) -> None:
    world.save(0)
    world.settle()
    world.store.may_go.clear()
    for number in range(4):  # two threads hang, two wait
        world.load(0, at=8 + number, request=f"r{number}")
    world.clock.advance(1.0)
    results = world.worker.collect(StepPlan())
    assert results.request_ids == {"r0", "r1", "r2", "r3"}
    assert results.failed_block_ids == {8, 9, 10, 11}
    world.store.may_go.set()
    world.load(0, at=12, request="later")
    assert world.collect().request_ids == {"later"}
    assert len(world.store.staging) == 3
    assert world.pages.scattered == [(12,)]


def test_busy_step_does_not_wait_for_loads(world: World) -> None:
    world.store.may_go.clear()
    world.load(0)
    start = time.monotonic()
    for _ in range(100):
        assert not world.worker.collect(StepPlan()).request_ids
    assert time.monotonic() - start < 1.0


@pytest.mark.parametrize(
    "error", [RuntimeError("any"), MemoryError(), ValueError(), AssertionError(), OSError()]
)
def test_store_that_raises_anything_is_a_miss_and_room_comes_back(
    world: World, error: Exception
) -> None:
    def raise_it() -> None:
        raise error

    world.store.fault = raise_it
    world.save(0, 1)
    world.settle()
    world.load(0, 1)
    assert world.collect().failed_block_ids == {8, 9}
    assert world.events.counts() == {"vllm.transfer-failed": 2}
    assert world.pages.scattered == []
    world.store.fault = None
    world.save(0)
    world.settle()
    world.load(0, request="again")
    assert not world.collect().failed_block_ids


def test_copies_beyond_the_bound_are_dropped_and_room_comes_back(world: World) -> None:
    world.store.may_go.clear()
    world.save(0, 1)
    world.save(2, 3)  # would be four of three
    world.save(4)
    assert world.worker._room == 0
    world.store.may_go.set()
    world.settle()
    assert world.events.counts() == {"vllm.save-dropped": 1, "vllm.batch-kept": 2}
    for number, is_kept in ((0, True), (1, True), (2, False), (3, False), (4, True)):
        world.load(number, request=str(number))
        assert (world.collect().failed_block_ids == set()) is is_kept


def test_prompt_larger_than_the_bound_is_kept_in_part(world: World) -> None:
    world.save(*range(4))
    world.settle()
    world.load(0)
    assert not world.collect().failed_block_ids


def test_pages_that_cannot_be_copied_are_not_kept_and_room_comes_back(world: World) -> None:
    def gather(block_ids: Sequence[int]) -> memoryview:
        raise MemoryError

    world.pages.gather = gather  # type: ignore[method-assign]
    world.save(0)
    world.settle()


def test_blocks_of_several_owners_go_each_to_its_own(world: World) -> None:
    world.pages.pages[:3] = [content(0), content(1), content(2)]
    world.worker.save(
        StepPlan(saves=[placed(0, 0, world.a), placed(1, 1, world.b), placed(2, 2, world.a)])
    )
    world.settle()
    for number, whose in ((0, world.a), (1, world.b), (2, world.a)):
        world.load(number, whose=whose, request=str(number))
        assert not world.collect().failed_block_ids
    for number, whose in ((0, world.b), (1, world.a), (2, world.b)):
        world.load(number, whose=whose, request=str(number))
        assert world.collect().failed_block_ids == {8}


def test_end_keeps_what_waits_and_takes_back_loads(world: World) -> None:
    world.save(0)
    world.store.may_go.clear()
    for number in range(3):
        world.load(0, at=8 + number, request=str(number))
    threading.Timer(0.05, world.store.may_go.set).start()
    world.worker.close()
    assert world.worker._room == PENDING
    ended: set[str] = set()
    end = time.monotonic() + 20
    while len(ended) < 3 and time.monotonic() < end:
        ended |= world.worker.collect(IDLE).request_ids
    assert ended == {"0", "1", "2"}


def test_a_long_load_comes_in_pieces_and_ends_once(world: World) -> None:
    for start in (0, 3, 6):
        world.save(*range(start, min(start + 3, 8)))
        world.settle()
    world.load(*range(8))
    assert world.collect() == LoadResults(request_ids={"r"}, failed_block_ids=set())
    assert world.pages.pages[8:16] == [content(number) for number in range(8)]
    assert len(world.store.staging) == 3
    assert world.events.counts()["vllm.load-placed"] == 3


def test_nothing_behind_a_piece_that_did_not_open_reaches_a_page(world: World) -> None:
    for start in (0, 3, 6):
        world.save(*(number for number in range(start, min(start + 3, 8)) if number != 4))
        world.settle()
    world.load(*range(8))
    assert world.collect() == LoadResults(request_ids={"r"}, failed_block_ids=set(range(12, 16)))
    assert world.pages.pages[8:16] == [content(number) for number in range(4)] + [EMPTY] * 4
