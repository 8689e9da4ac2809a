"""What every backend of a store has to pass, whoever wrote it.

```python
class TestMyBackend(BackendConformance):
    def open_backend(self, room, clock):
        return MyBackend(address, room, now_unix_s=clock)
```

Tenants, scopes and names are drawn anew by every test, so that a store may be used by one test
after the other without being emptied.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from kvward.store.backend import (
    BUCKET_BYTES,
    NAME_BYTES,
    Backend,
    Bucket,
    BucketUsage,
    Buffer,
    Entry,
    EntryName,
    Room,
)
from kvward.testing.clocks import Clock, ManualClock

WIDE = Room(capacity_bytes=64 << 20, share_bytes=16 << 20)
_VALUES = {
    "nothing": b"",
    "one byte": b"\x00",
    "every byte": bytes(range(256)),
    "looks like a protocol": b"$3\r\nfoo\r\n{}\x00%\xff",
    "1 MiB": os.urandom(1 << 20),
}


class Opener(Protocol):
    """Opens the store of a test; called again, it opens a second handle on the same store."""

    def __call__(self, room: Room = WIDE) -> Backend:
        """Open it."""


class BackendConformance:
    """Subclass it, say how a backend is opened, and let pytest collect the subclass."""

    def open_backend(self, room: Room, clock: Clock) -> Backend:
        """Return a new handle on the store of this test."""
        raise NotImplementedError

    def new_clock(self) -> Clock:
        """Return the clock of a test. A store with a clock of its own needs a `WaitingClock`."""
        return ManualClock()

    def settle(self, backend: Backend) -> None:
        """Bring the store within its room, where a backend does that by a sweep of its own."""

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock of this test."""
        return self.new_clock()

    @pytest.fixture
    def opened(self, clock: Clock) -> Iterator[Opener]:
        """Open handles, and close those that can be closed after the test."""
        handles: list[Backend] = []

        def opened(room: Room = WIDE) -> Backend:
            # What lives in one process has one handle.
            if handles and not handles[0].capabilities.shared_between_processes:
                return handles[0]
            handles.append(self.open_backend(room, clock))
            return handles[-1]

        yield opened
        for handle in handles:
            close: Callable[[], None] = getattr(handle, "close", _nothing)
            close()

    @pytest.fixture
    def backend(self, opened: Opener) -> Backend:
        """A handle on a store with room for everything."""
        return opened()

    # What is put is found

    def test_what_is_put_is_found_until_it_is_deleted(self, backend: Backend, clock: Clock) -> None:
        name = new_name()
        assert backend.get_many([name]) == [None]
        assert backend.contains_many([name]) == [False]
        assert backend.put_many([entry(name, b"sealed", clock)]) == [True]
        assert read(backend, name) == b"sealed"
        assert backend.contains_many([name]) == [True]
        backend.delete_many([name])
        assert backend.get_many([name]) == [None]
        assert backend.contains_many([name]) == [False]

    def test_sequences_may_be_empty(self, backend: Backend) -> None:
        assert list(backend.get_many([])) == []
        assert list(backend.put_many([])) == []
        assert list(backend.contains_many([])) == []
        backend.delete_many([])

    def test_unknown_names_are_deleted_and_unknown_buckets_purged_without_complaint(
        self, backend: Backend
    ) -> None:
        name = new_name()
        backend.delete_many([name, name])
        assert backend.purge(Bucket(tenant=name.tenant, scope=name.scope)) == 0
        assert backend.purge(Bucket(tenant=name.tenant, scope=None)) == 0
        assert name.tenant not in backend.stats()

    @pytest.mark.parametrize("kind", _VALUES)
    @pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
    def test_values_return_as_they_were_put(
        self, backend: Backend, clock: Clock, kind: str, form: Callable[[bytes], Buffer]
    ) -> None:
        name, value = new_name(), _VALUES[kind]
        assert backend.put_many([entry(name, form(value), clock)]) == [True]
        assert read(backend, name) == value
        assert backend.contains_many([name]) == [True]

    def test_the_callers_buffer_is_the_callers_again_after_a_put(
        self, backend: Backend, clock: Clock
    ) -> None:
        name, data = new_name(), bytearray(b"a" * 10_000)
        backend.put_many([entry(name, data, clock)])
        data[:] = b"b" * 10_000
        assert read(backend, name) == b"a" * 10_000

    def test_a_put_replaces(self, backend: Backend, clock: Clock) -> None:
        name = new_name()
        backend.put_many([entry(name, b"first, and longer", clock)])
        assert backend.put_many([entry(name, b"second", clock)]) == [True]
        assert read(backend, name) == b"second"
        assert usage(backend, name.tenant) == (1, 6)

    def test_answers_of_a_batch_are_in_the_order_of_its_names(
        self, backend: Backend, clock: Clock
    ) -> None:
        tenants = [new_name(), new_name()]
        names = [new_name(like=tenants[at % 2]) for at in range(40)]
        values = [b"%d" % at for at in range(40)]
        assert all(
            backend.put_many([entry(n, v, clock) for n, v in zip(names, values, strict=True)])
        )
        unknown = new_name(like=tenants[0])
        asked = [names[7], unknown, names[0], names[7], names[39], unknown]
        expected = [b"7", None, b"0", b"7", b"39", None]
        assert [data and bytes(data) for data in backend.get_many(asked)] == expected
        assert backend.contains_many(asked) == [data is not None for data in expected]

    def test_names_that_differ_in_one_bit_are_different(
        self, backend: Backend, clock: Clock
    ) -> None:
        name = new_name()
        neighbours = list(iter_neighbours(name))
        backend.put_many([entry(name, b"mine", clock)])
        assert not any(backend.contains_many(neighbours))
        assert backend.get_many(neighbours) == [None] * len(neighbours)
        some = neighbours[:: len(neighbours) // 16]
        backend.put_many([entry(other, b"theirs", clock) for other in some])
        backend.delete_many(some)
        assert read(backend, name) == b"mine"

    def test_two_handles_are_one_store(self, opened: Opener, clock: Clock) -> None:
        one, other = opened(), opened()
        first, second = new_name(), new_name()
        one.put_many([entry(first, b"1", clock)])
        other.put_many([entry(second, b"2", clock)])
        assert read(other, first) == b"1"
        assert read(one, second) == b"2"
        other.delete_many([first])
        assert one.contains_many([first, second]) == [False, True]
        assert one.purge(Bucket(tenant=second.tenant, scope=None)) == 1
        assert other.get_many([second]) == [None]

    # What is past its time is not served

    def test_entries_past_their_time_are_not_served(self, backend: Backend, clock: Clock) -> None:
        short, replaced, long = (new_name(like=new_name()) for _ in range(3))
        backend.put_many(
            [
                entry(short, b"short", clock, lives_s=3),
                entry(replaced, b"short", clock, lives_s=3),
                entry(long, b"long", clock),
            ]
        )
        assert backend.put_many([entry(replaced, b"long", clock)]) == [True]
        assert backend.contains_many([short, replaced, long]) == [True, True, True]
        clock.advance(3.2)
        assert backend.contains_many([short, replaced, long]) == [False, True, True]
        assert backend.get_many([short]) == [None]
        assert read(backend, replaced) == b"long"
        assert backend.put_many([entry(short, b"again", clock)]) == [True]
        assert read(backend, short) == b"again"

    def test_an_entry_put_after_its_time_is_not_served(
        self, backend: Backend, clock: Clock
    ) -> None:
        name = new_name()
        backend.put_many([entry(name, b"in time", clock)])
        backend.put_many([entry(name, b"too late", clock, lives_s=-10)])
        clock.advance(0.1)
        assert backend.get_many([name]) == [None]

    # A bucket is forgotten as a whole, and no other

    def test_purge_of_a_scope_leaves_other_scopes(self, backend: Backend, clock: Clock) -> None:
        mine = new_name()
        same_scope = EntryName(tenant=mine.tenant, scope=mine.scope, name=os.urandom(NAME_BYTES))
        other_scope = new_name(like=mine)
        # The same scope bytes under another tenant are another scope.
        elsewhere = EntryName(tenant=new_name().tenant, scope=mine.scope, name=mine.name)
        names = [mine, same_scope, other_scope, elsewhere]
        backend.put_many([entry(name, b"x", clock) for name in names])
        bucket = Bucket(tenant=mine.tenant, scope=mine.scope)
        assert backend.purge(bucket) == 2
        assert backend.contains_many(names) == [False, False, True, True]
        assert backend.purge(bucket) == 0
        assert backend.put_many([entry(mine, b"new", clock)]) == [True]
        assert read(backend, mine) == b"new"

    def test_purge_of_a_tenant_leaves_other_tenants(self, backend: Backend, clock: Clock) -> None:
        mine, other = new_name(), new_name()
        mine_all = [mine, *(new_name(like=mine) for _ in range(24))]
        backend.put_many([entry(name, b"x", clock) for name in [*mine_all, other]])
        bucket = Bucket(tenant=mine.tenant, scope=None)
        assert backend.purge(bucket) == 25
        assert not any(backend.contains_many(mine_all))
        assert backend.contains_many([other]) == [True]
        assert mine.tenant not in backend.stats()
        assert backend.purge(bucket) == 0
        assert backend.put_many([entry(mine, b"new", clock)]) == [True]
        assert usage(backend, mine.tenant) == (1, 3)

    # Nobody takes what is another's

    def test_usage_is_exact_after_every_change(self, backend: Backend, clock: Clock) -> None:
        first = new_name()
        second = EntryName(tenant=first.tenant, scope=first.scope, name=os.urandom(NAME_BYTES))
        third = new_name(like=first)
        tenant = first.tenant
        backend.put_many([entry(first, b"a" * 100, clock), entry(second, b"b" * 20, clock)])
        assert usage(backend, tenant) == (2, 120)
        backend.put_many([entry(first, b"c" * 7, clock)])
        assert usage(backend, tenant) == (2, 27)
        backend.put_many([entry(third, b"", clock), entry(third, b"d", clock)])
        assert usage(backend, tenant) == (3, 28)
        backend.delete_many([second, second])
        assert usage(backend, tenant) == (2, 8)
        assert backend.purge(Bucket(tenant=tenant, scope=first.scope)) == 1
        assert usage(backend, tenant) == (1, 1)
        backend.delete_many([third])
        assert tenant not in backend.stats()

    def test_a_tenant_that_fills_up_takes_nothing_from_a_share(
        self, opened: Opener, clock: Clock
    ) -> None:
        backend = opened(Room(capacity_bytes=10_000, share_bytes=4_000))
        modest, greedy = new_name(), new_name()
        modest_names = [new_name(like=modest) for _ in range(4)]
        greedy_names = [new_name(like=greedy) for _ in range(40)]
        backend.put_many([entry(name, b"m" * 1_000, clock) for name in modest_names[:2]])
        for name in greedy_names:
            assert backend.put_many([entry(name, b"g" * 1_000, clock)]) == [True]
        backend.put_many([entry(name, b"m" * 1_000, clock) for name in modest_names[2:]])
        self.settle(backend)
        assert all(backend.contains_many(modest_names))
        assert usage(backend, modest.tenant) == (4, 4_000)
        assert evicted(backend, modest.tenant) == 0
        entries, num_bytes = usage(backend, greedy.tenant)
        assert num_bytes == 1_000 * entries <= 6_000
        assert evicted(backend, greedy.tenant) == len(greedy_names) - entries

    def test_the_oldest_of_a_tenant_go_first(self, opened: Opener, clock: Clock) -> None:
        backend = opened(Room(capacity_bytes=8_000, share_bytes=8_000))
        whose = new_name()
        names = [new_name(like=whose) for _ in range(20)]
        for name in names:
            backend.put_many([entry(name, b"x" * 1_000, clock)])
        self.settle(backend)
        assert backend.contains_many(names) == [False] * 12 + [True] * 8
        # What was replaced is young again.
        backend.put_many([entry(names[12], b"y" * 1_000, clock)])
        backend.put_many([entry(names[0], b"y" * 2_000, clock)])
        self.settle(backend)
        assert backend.contains_many(names) == (
            [True] + [False] * 11 + [True] + [False] * 2 + [True] * 5
        )
        assert usage(backend, whose.tenant) == (7, 8_000)

    def test_an_entry_larger_than_its_room_is_not_kept(self, opened: Opener, clock: Clock) -> None:
        backend = opened(Room(capacity_bytes=1_000, share_bytes=1_000))
        small, large, full = (new_name(like=new_name()) for _ in range(3))
        answers = backend.put_many([entry(small, b"s", clock), entry(large, b"l" * 1_001, clock)])
        assert answers == [True, False]
        assert backend.contains_many([small, large]) == [True, False]
        assert large.tenant not in backend.stats()
        backend.delete_many([small])
        assert backend.put_many([entry(full, b"f" * 1_000, clock)]) == [True]

    # Several at once

    def test_no_reader_sees_part_of_an_entry(self, opened: Opener, clock: Clock) -> None:
        one, other = opened(), opened()
        names = [new_name(like=new_name()) for _ in range(3)]

        def write(backend: Backend, mark: int) -> None:
            for turn in range(12):
                byte = bytes([mark + turn])
                backend.put_many([entry(n, byte * (20_000 + byte[0]), clock) for n in names])

        written = threading.Event()

        def check(backend: Backend) -> int:
            num_seen, last = 0, False
            while not last:
                last = written.is_set()  # once more after the last write: that one is seen
                for data in backend.get_many(names):
                    if data is not None:
                        value = bytes(data)
                        assert value == value[:1] * (20_000 + value[0])
                        num_seen += 1
            return num_seen

        with ThreadPoolExecutor(4) as threads:
            writers = [threads.submit(write, one, 0), threads.submit(write, other, 100)]
            readers = [threads.submit(check, one), threads.submit(check, other)]
            try:
                for writer in writers:
                    writer.result()
            finally:
                written.set()
            assert sum(reader.result() for reader in readers) > 0

    def test_usage_is_exact_after_many_at_once(self, opened: Opener, clock: Clock) -> None:
        handles = [opened(), opened()]
        whose = new_name()
        shared = [new_name(like=whose) for _ in range(5)]

        def work(at: int) -> None:
            backend = handles[at % 2]
            own = [new_name(like=whose) for _ in range(10)]
            for turn, name in enumerate(own):
                backend.put_many([entry(name, b"o" * (turn + 1), clock)])
                backend.put_many([entry(shared[turn % 5], b"s" * (at + turn), clock)])
                backend.delete_many([own[turn // 2], shared[at % 5]])

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(work, at) for at in range(4)]:
                done.result()
        num_before, _ = usage(handles[0], whose.tenant)
        assert usage(handles[1], whose.tenant)[0] == num_before
        backend = handles[0]
        found = [data for data in backend.get_many(shared) if data is not None]
        backend.delete_many(shared)
        left = usage(backend, whose.tenant)
        assert left[0] == num_before - len(found) == 4 * 5
        assert left[1] == 4 * sum(range(6, 11))
        assert backend.purge(Bucket(tenant=whose.tenant, scope=None)) == left[0]
        assert whose.tenant not in backend.stats()

    def test_purge_reaches_all_that_was_there_before_it(self, opened: Opener, clock: Clock) -> None:
        one, other = opened(), opened()
        whose = new_name()
        before = [new_name(like=whose) for _ in range(30)]
        one.put_many([entry(name, b"before", clock) for name in before])

        def write() -> None:
            for _ in range(15):
                other.put_many([entry(new_name(like=whose), b"during", clock)])

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)
            assert one.purge(Bucket(tenant=whose.tenant, scope=None)) >= 30
            writing.result()
        assert not any(other.contains_many(before))
        one.purge(Bucket(tenant=whose.tenant, scope=None))
        assert whose.tenant not in one.stats()


def new_name(*, like: EntryName | None = None) -> EntryName:
    """Draw a name; of a given name's tenant, in a scope of its own, if there is one."""
    return EntryName(
        tenant=os.urandom(BUCKET_BYTES) if like is None else like.tenant,
        scope=os.urandom(BUCKET_BYTES),
        name=os.urandom(NAME_BYTES),
    )


def entry(name: EntryName, data: Buffer, clock: Clock, *, lives_s: int = 1000) -> Entry:
    """Make an entry that expires some time from now."""
    return Entry(name=name, data=data, expires_unix_s=int(clock()) + lives_s)


def read(backend: Backend, name: EntryName) -> bytes | None:
    """Return what is kept under one name."""
    data = backend.get_many([name])[0]
    return None if data is None else bytes(data)


def usage(backend: Backend, tenant: bytes) -> tuple[int, int]:
    """Return entries and bytes of a tenant."""
    found: BucketUsage = backend.stats()[tenant]
    return found.num_entries, found.num_bytes


def evicted(backend: Backend, tenant: bytes) -> int:
    """Return how many entries of a tenant were dropped for room."""
    return backend.stats()[tenant].evicted_entries


def iter_neighbours(name: EntryName) -> Iterator[EntryName]:
    """Return all names that differ from one in a single bit."""
    whole = name.tenant + name.scope + name.name
    for bit in range(8 * len(whole)):
        changed = (int.from_bytes(whole) ^ (1 << bit)).to_bytes(len(whole))
        tenant, scope = changed[:BUCKET_BYTES], changed[BUCKET_BYTES : 2 * BUCKET_BYTES]
        yield EntryName(tenant=tenant, scope=scope, name=changed[2 * BUCKET_BYTES :])


def _nothing() -> None:
    pass
