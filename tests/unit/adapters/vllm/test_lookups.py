"""Look-ups beside the scheduler's loop: late, failed or too many is a miss, of that tenant only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kvward.adapters.vllm.lookups import LookUp, LookUps
from kvward.events import EventCounter
from kvward.scope.owner import ScopeOwner
from kvward.testing.clocks import ManualClock

THREADS = 4


def owner(tenant: str, scope: bytes = b"s" * 24) -> ScopeOwner:
    return ScopeOwner(tenant_id=tenant.encode().ljust(24), scope_id=scope, epoch=0)


PUBLIC = owner("public")


class Store:
    """Answers by tenant: hangs for some, raises for some, and has every block for the others."""

    def __init__(self) -> None:
        self.hangs: set[bytes] = set()
        self.raises: set[bytes] = set()
        self.may_go = threading.Event()
        self.num_waiting = 0

    def scope(self, whose: ScopeOwner) -> Any:
        return SimpleNamespace(contains=lambda hashes: self._contains(whose, hashes))

    def _contains(self, whose: ScopeOwner, hashes: Sequence[bytes]) -> list[bool]:
        if whose.tenant_id in self.hangs:
            self.num_waiting += 1
            assert self.may_go.wait(20)
        if whose.tenant_id in self.raises:
            raise RuntimeError("of whatever kind")
        return [True] * len(hashes)


class World:
    def __init__(self) -> None:
        self.store, self.events, self.clock = Store(), EventCounter(), ManualClock()
        self.look_ups = LookUps(
            self.store,  # type: ignore[arg-type]
            events=self.events,
            num_threads=THREADS,
            wait_s=1.0,
            monotonic_s=self.clock,
        )

    def ask(self, *tenants: str, num_blocks: int = 2, by: str | None = None) -> LookUp:
        return self.look_ups.ask(
            [(owner(tenant), [b"h"] * num_blocks) for tenant in tenants],
            tenant_id=owner(by or tenants[-1]).tenant_id,
        )

    def wait(self, look_up: LookUp) -> list[bool] | None:
        until(lambda: self.look_ups.answer(look_up) is not None)
        return self.look_ups.answer(look_up)


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.store.may_go.set()
    world.look_ups.close()


def test_answers_of_several_owners_stand_in_order(world: World) -> None:
    assert world.wait(world.ask("public", "a", num_blocks=2)) == [True] * 4
    assert world.wait(world.look_ups.ask([], tenant_id=None)) == []


def test_answer_is_awaited_until_the_deadline_and_is_none_from_then_on(world: World) -> None:
    world.store.hangs = {owner("a").tenant_id}
    look_up = world.ask("a")
    assert world.look_ups.answer(look_up) is None
    world.clock.advance(0.999)
    assert world.look_ups.answer(look_up) is None
    world.clock.advance(0.002)
    assert world.look_ups.answer(look_up) == []
    world.store.may_go.set()
    until(lambda: not any(world.look_ups._running.values()))
    assert world.look_ups.answer(look_up) == []
    assert world.events.counts() == {"vllm.lookup-late": 1}


def test_failure_is_a_miss_from_there_on(world: World) -> None:
    world.store.raises = {owner("a").tenant_id}
    assert world.wait(world.ask("a")) == []
    assert world.wait(world.ask("public", "a", num_blocks=1)) == [True]
    assert world.wait(world.ask("a", "public")) == []
    assert world.events.counts() == {"vllm.lookup-failed": 3}
    world.store.raises = set()
    assert world.wait(world.ask("a")) == [True, True]


def test_no_tenant_has_more_than_half_of_the_pool(world: World) -> None:
    world.store.hangs = {owner("a").tenant_id}
    waiting = [world.ask("a") for _ in range(10)]
    until(lambda: world.store.num_waiting == THREADS // 2)
    assert [look_up.found for look_up in waiting] == [None] * 2 + [[]] * 8
    assert world.wait(world.ask("b")) == [True, True]
    assert world.events.counts() == {"vllm.lookup-full": 8}
    world.store.may_go.set()
    assert [world.wait(look_up) for look_up in waiting[:2]] == [[True, True]] * 2
    until(lambda: not any(world.look_ups._running.values()))
    assert world.wait(world.ask("a")) == [True, True]


def test_failed_and_late_look_ups_give_their_place_back(world: World) -> None:
    world.store.raises = {owner("a").tenant_id}
    for _ in range(20):
        world.wait(world.ask("a"))
        until(lambda: not any(world.look_ups._running.values()))
    assert "vllm.lookup-full" not in world.events.counts()


def test_tenant_that_asks_for_public_blocks_only_has_no_more_than_half_either(
    world: World,
) -> None:
    world.store.hangs = {owner("a").tenant_id, PUBLIC.tenant_id}
    for _ in range(THREADS):
        world.ask("a")
        world.ask("public", by="a")  # a prompt of the same tenant that ends within the prefix
    until(lambda: world.store.num_waiting >= THREADS // 2)
    answered = world.ask("b")
    time.sleep(0.2)
    assert answered.found == [True, True]


def test_nothing_is_asked_after_the_end(world: World) -> None:
    world.look_ups.close()
    with pytest.raises(RuntimeError):
        world.ask("a")
