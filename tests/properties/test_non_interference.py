"""What one tenant sees does not depend on what another one does.

Store and keyring: answers, loaded bytes, epochs, receipts, usage of the own bucket (after a sweep)
and events of the own calls, compared exactly, while the first tenant stays within its share.
Lab engine: tokens and cached tokens exactly, logprobs within the rounding of a batch, while pool,
batch and running requests are large enough for everybody. How long anything takes is not compared:
that other tenants' load is invisible is not promised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from keyrings import Clock, open_keyring, owner
from kvward.errors import EpochRetiredError
from kvward.events import EventCounter
from kvward.lab.behaviour import SOUND
from kvward.lab.interface import EngineOptions
from kvward.lab.ward import EngineWard
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.scope.keyring import Keyring, erase_scope, erase_tenant
from kvward.store import Bucket, BucketUsage, Entry, EntryName, Room
from kvward.store.backend import Buffer, Capabilities
from kvward.store.backends.memory import MemoryBackend
from kvward.terms import SharingLevel
from kvward.testing.clocks import ManualClock
from lab_models import random_weights, small_config
from lab_schedules import Ask, run_schedule
from two_tenants import (
    HOSTILE_NAMES,
    ROOM,
    OpenBackend,
    Operation,
    open_filesystem,
    open_memory,
    operation_lists,
    run_world,
    without_second,
)

TOLERANCE = 1e-4
CALM = [HealthCheck.too_slow]


class OldestOfAllGoes:
    """A bad backend: when room is needed, whatever is oldest goes, whoever's it is."""

    def __init__(self, room: Room, now_unix_s: Callable[[], float]) -> None:
        self._room, self._now = room, now_unix_s
        self._entries: dict[EntryName, Entry] = {}
        self._num_bytes = 0

    capabilities = Capabilities(
        protects_shares=False, shared_between_processes=False, durable=False, expires_by_itself=True
    )

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        found = [self._entries.get(name) for name in names]
        return [None if e is None or e.expires_unix_s <= self._now() else e.data for e in found]

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        return [data is not None for data in self.get_many(names)]

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        self.delete_many([n for n, e in self._entries.items() if e.expires_unix_s <= self._now()])
        for entry in entries:
            self.delete_many([entry.name])
            self._entries[entry.name] = replace(entry, data=bytes(entry.data))
            self._num_bytes += len(entry.data)
            while self._num_bytes > self._room.capacity_bytes:
                self.delete_many([next(iter(self._entries))])
        return [True] * len(entries)

    def delete_many(self, names: Sequence[EntryName]) -> None:
        for name in names:
            gone = self._entries.pop(name, None)
            self._num_bytes -= 0 if gone is None else len(gone.data)

    def purge(self, bucket: Bucket) -> int:
        names = [
            n
            for n in self._entries
            if n.tenant == bucket.tenant and bucket.scope in (None, n.scope)
        ]
        self.delete_many(names)
        return len(names)

    def stats(self) -> Mapping[bytes, BucketUsage]:
        sizes: dict[bytes, list[int]] = {}
        for name, entry in self._entries.items():
            sizes.setdefault(name.tenant, []).append(len(entry.data))
        return {
            t: BucketUsage(num_entries=len(s), num_bytes=sum(s), evicted_entries=0)
            for t, s in sizes.items()
        }


def open_bad(folder: Path, clock: Callable[[], float]) -> OldestOfAllGoes:
    return OldestOfAllGoes(ROOM, clock)


def is_seen(open_backend: OpenBackend, operations: list[Operation], second: str) -> bool:
    """Tell whether the first tenant can see the second."""
    together = run_world(open_backend, operations, second=second)
    alone = run_world(open_backend, without_second(operations), second=second)
    return together != alone


@settings(max_examples=150, suppress_health_check=CALM)
@given(operations=operation_lists(), second=st.sampled_from(HOSTILE_NAMES))
def test_a_second_tenant_is_not_seen_through_memory(
    operations: list[Operation], second: str
) -> None:
    together = run_world(open_memory, operations, second=second)
    assert together == run_world(open_memory, without_second(operations), second=second)


@settings(max_examples=50, suppress_health_check=CALM)
@given(operations=operation_lists(), second=st.sampled_from(HOSTILE_NAMES))
def test_a_second_tenant_is_not_seen_through_files(
    operations: list[Operation], second: str
) -> None:
    together = run_world(open_filesystem, operations, second=second)
    assert together == run_world(open_filesystem, without_second(operations), second=second)


def test_a_backend_whose_oldest_entries_go_is_seen_through() -> None:
    # Raises when there is no such list of operations.
    operations = find(
        operation_lists(),
        lambda operations: is_seen(open_bad, operations, "b"),
        settings=settings(max_examples=2000, deadline=None, derandomize=True, database=None),
    )
    assert "flood" in {operation.kind for operation in operations}
    assert not is_seen(open_memory, operations, "b")


# What an operator is asked to do for one tenant


@pytest.fixture
def keyring(tmp_path: Path) -> Iterator[Keyring]:
    keyring = open_keyring(("sqlite", str(tmp_path / "keyring.db")), Clock())
    yield keyring
    keyring.database.close()


def test_an_erasure_for_one_tenant_ends_no_scope_of_another(keyring: Keyring) -> None:
    mine = owner(keyring, "a")
    keyring.writing_keys(mine)
    keyring.tenant_key("b")
    erase_scope(keyring, "b", mine.scope_id)
    assert len(keyring.reading_keys(mine)) == 1
    assert owner(keyring, "a") == mine


def test_an_erasure_for_one_tenant_revives_no_token_of_another(keyring: Keyring) -> None:
    for _ in range(3):
        ended = owner(keyring, "a")
        keyring.writing_keys(ended)
        erase_scope(keyring, "a", ended.scope_id)
    keyring.tenant_key("b")
    erase_scope(keyring, "b", ended.scope_id)
    with_key = True
    for epoch in range(ended.epoch + 1):
        try:
            keyring.writing_keys(replace(ended, epoch=epoch))
        except EpochRetiredError:
            continue
        with_key = False
    assert with_key, "a token of an epoch that was erased writes again"


def test_a_tenant_that_goes_takes_no_tombstone_of_another_along(keyring: Keyring) -> None:
    mine = owner(keyring, "a")
    keyring.tenant_key("b")
    erase_scope(keyring, "b", mine.scope_id)
    mine = owner(keyring, "a")
    keyring.writing_keys(mine)
    last = erase_scope(keyring, "a", mine.scope_id).last_epoch
    erase_tenant(keyring, "b")
    assert owner(keyring, "a").epoch > last


# The room of a store


def put(backend: MemoryBackend, clock: ManualClock, tenant: bytes, names: range, size: int) -> None:
    backend.put_many(
        [
            Entry(
                name=EntryName(
                    tenant=tenant, scope=b"s" * 16, name=hashlib.sha256(b"%d" % n).digest()
                ),
                data=bytes(size),
                expires_unix_s=int(clock()) + 100,
            )
            for n in names
        ]
    )


def test_usage_does_not_tell_that_somebody_else_stores_something() -> None:
    seen = []
    for second_puts in (False, True):
        clock = ManualClock()
        backend = MemoryBackend(ROOM, now_unix_s=clock)
        put(backend, clock, b"a" * 16, range(1), 100)
        clock.advance(200)
        if second_puts:
            put(backend, clock, b"b" * 16, range(1), 100)
        seen.append(backend.stats().get(b"a" * 16))
    assert seen[0] == seen[1]


def test_what_another_let_expire_takes_nothing_from_a_share() -> None:
    clock = ManualClock()
    backend = MemoryBackend(Room(capacity_bytes=30_000, share_bytes=10_000), now_unix_s=clock)
    first, second, third = b"a" * 16, b"b" * 16, b"c" * 16
    # 2,100 small entries of the second, and a second later the whole share of the first.
    put(backend, clock, second, range(2_100), 1)
    clock.advance(1)
    put(backend, clock, first, range(10), 1_000)
    clock.advance(200)
    # The first tenant has nothing that lives; it puts its share, and not a byte more.
    put(backend, clock, first, range(100, 110), 1_000)
    # A third one puts more than its share, and the second what it has a right to.
    put(backend, clock, third, range(200, 215), 1_000)
    put(backend, clock, second, range(300, 310), 1_000)
    names = [
        EntryName(tenant=first, scope=b"s" * 16, name=hashlib.sha256(b"%d" % n).digest())
        for n in range(100, 110)
    ]
    assert backend.contains_many(names) == [True] * 10


def test_a_tenant_that_erases_itself_takes_one_share_only(keyring: Keyring) -> None:
    clock = ManualClock()
    backend = MemoryBackend(Room(capacity_bytes=20_000, share_bytes=10_000), now_unix_s=clock)

    def bucket(tenant: str) -> bytes:
        keyring.tenant_key(tenant)  # it comes back, if it was erased
        return keyring.tenant_bucket(keyring.tenant_id(tenant))

    for _ in range(2):
        put(backend, clock, bucket("b"), range(10), 1_000)
        erase_tenant(keyring, "b")  # stores are purged later, in the background
    put(backend, clock, bucket("a"), range(10), 1_000)
    usage = backend.stats().get(bucket("a"))
    assert usage is not None
    assert usage.num_bytes == 10_000


# The engine

CONFIG = small_config()
WEIGHTS = random_weights(CONFIG, seed=3)
ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
FIRST, SECOND = (
    ISSUER.token(
        Scope(deployment="test", tenant=t, level=SharingLevel.TENANT, subject=b"", epoch=0)
    )
    for t in ("a", "b")
)
ROOMY = EngineOptions(
    block_tokens=4, num_blocks=1_000, max_batch_tokens=4_096, max_running_requests=64
)


@st.composite
def asks(draw: st.DrawFn, salt: str) -> list[Ask]:
    prefixes = [
        tuple(np.random.default_rng(seed).integers(0, 50, 40).tolist()) for seed in range(2)
    ]
    made = []
    for _ in range(draw(st.integers(1, 6))):
        arrives = draw(st.integers(0, 12))
        prompt = draw(st.sampled_from(prefixes))[: draw(st.integers(1, 40))]
        prompt += tuple(draw(st.lists(st.integers(0, 49), max_size=4)))
        made.append(
            Ask(
                prompt=prompt,
                max_tokens=draw(st.integers(1, 8)),
                arrives=arrives,
                salt=salt,
                leaves=draw(st.none() | st.integers(arrives, arrives + 6)),
            )
        )
    return made


@settings(max_examples=60)
@given(
    first=asks(FIRST),
    second=asks(SECOND),
    second_asks_first=st.booleans(),
    host_blocks=st.sampled_from([0, 200]),
    warded=st.booleans(),
)
def test_answers_of_the_engine_do_not_depend_on_another_tenant(
    first: list[Ask],
    second: list[Ask],
    second_asks_first: bool,
    host_blocks: int,
    warded: bool,
) -> None:
    options = replace(ROOMY, host_blocks=host_blocks)

    def run(requests: list[Ask]) -> list[object]:
        ward = EngineWard(ISSUER.token_key, events=EventCounter()) if warded else None
        answers, _ = run_schedule(WEIGHTS, CONFIG, options, requests, behaviour=SOUND, ward=ward)
        return [answer for ask, answer in zip(requests, answers, strict=True) if ask.salt == FIRST]

    alone = run(first)
    together = run([*second, *first] if second_asks_first else [*first, *second])
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens  # type: ignore[attr-defined]
        assert one.cached_tokens == other.cached_tokens  # type: ignore[attr-defined]
        assert one.reason == other.reason  # type: ignore[attr-defined]
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):  # type: ignore[attr-defined]
            assert mine.keys() == theirs.keys()
            np.testing.assert_allclose(
                [mine[token] for token in sorted(mine)],
                [theirs[token] for token in sorted(theirs)],
                rtol=0,
                atol=TOLERANCE,
            )
