"""The index of embedded backends: whose room is whose, held against a recount of its rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvward.errors import BackendDataError, StoreError, UsageError
from kvward.store import Bucket, EntryName, Room
from kvward.store.backends.index import EntryIndex

ROOM = Room(capacity_bytes=30, share_bytes=10)
A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))


@dataclass(frozen=True)
class Row:
    name: EntryName
    num_bytes: int
    is_protected: bool
    expires: int


def name(tenant: bytes, number: int, *, scope: int = 0) -> EntryName:
    return EntryName(tenant=tenant, scope=bytes([scope]) * 16, name=bytes([number]) * 32)


def rows(index: EntryIndex) -> list[Row]:
    """Return all rows, the oldest first."""
    found = index._db.execute(
        "SELECT tenant, scope, name, num_bytes, protected, expires_unix_s FROM entries ORDER BY put"
    ).fetchall()
    return [
        Row(EntryName(tenant=t, scope=s, name=n), size, bool(p), expires)
        for t, s, n, size, p, expires in found
    ]


def check_accounts(index: EntryIndex, room: Room) -> None:
    """Hold what the index says of tenants against its rows, and both against the room."""
    entries: Counter[bytes] = Counter()
    protected: Counter[bytes] = Counter()
    borrowed: Counter[bytes] = Counter()
    for row in rows(index):
        entries[row.name.tenant] += 1
        (protected if row.is_protected else borrowed)[row.name.tenant] += row.num_bytes
    accounts = index._db.execute(
        "SELECT tenant, has_share, num_entries, protected_bytes, borrowed_bytes FROM tenants"
    ).fetchall()
    assert set(entries) <= {account[0] for account in accounts}
    for tenant, has_share, num_entries, protected_bytes, borrowed_bytes in accounts:
        told = (num_entries, protected_bytes, borrowed_bytes)
        assert told == (entries[tenant], protected[tenant], borrowed[tenant])
        assert protected_bytes <= room.share_bytes * has_share
        assert num_entries or not has_share
    assert sum(protected.values()) + sum(borrowed.values()) <= room.capacity_bytes
    assert sum(account[1] for account in accounts) * room.share_bytes <= room.capacity_bytes
    usage = index.usage()
    assert {t: (u.num_entries, u.num_bytes) for t, u in usage.items()} == {
        t: (n, protected[t] + borrowed[t]) for t, n in entries.items()
    }


def admit(index: EntryIndex, tenant: bytes, numbers: range, size: int) -> None:
    for number in numbers:
        assert index.admit(name(tenant, number), size, expires_unix_s=100, now_unix_s=0)[0]


def numbers_of(index: EntryIndex, tenant: bytes) -> list[int]:
    return [row.name.name[0] for row in rows(index) if row.name.tenant == tenant]


@pytest.fixture
def index() -> EntryIndex:
    return EntryIndex(":memory:", ROOM)


def test_a_room_has_a_share_that_fits() -> None:
    for capacity, share in [(10, 0), (10, 11), (0, 0), (10, -1)]:
        with pytest.raises((ValueError, UsageError)):
            Room(capacity_bytes=capacity, share_bytes=share)


def test_within_its_share_an_entry_is_protected_and_beyond_it_is_borrowed(
    index: EntryIndex,
) -> None:
    admit(index, A, range(8), 3)
    assert [row.is_protected for row in rows(index)] == [True] * 3 + [False] * 5
    check_accounts(index, ROOM)


def test_what_is_borrowed_goes_first_and_the_oldest_of_it(index: EntryIndex) -> None:
    admit(index, A, range(10), 3)
    admitted, dropped = index.admit(name(B, 0), 5, expires_unix_s=100, now_unix_s=0)
    assert admitted
    assert dropped == [name(A, 3), name(A, 4)]
    admit(index, B, range(1, 2), 5)
    assert numbers_of(index, A) == [0, 1, 2, 7, 8, 9]
    # Beyond its share a tenant takes from itself.
    admitted, dropped = index.admit(name(B, 2), 5, expires_unix_s=100, now_unix_s=0)
    assert (admitted, dropped) == (True, [name(B, 0)])
    assert index.usage()[A].evicted_entries == 4
    assert index.usage()[B].evicted_entries == 1
    check_accounts(index, ROOM)


def test_the_largest_borrower_gives_back_first(index: EntryIndex) -> None:
    admit(index, A, range(14), 1)
    admit(index, B, range(16), 1)
    admit(index, C, range(10), 1)
    assert len(numbers_of(index, A)) + len(numbers_of(index, B)) == 20
    assert len(numbers_of(index, A)) == len(numbers_of(index, B)) == 10
    admitted, dropped = index.admit(name(C, 99), 1, expires_unix_s=100, now_unix_s=0)
    assert (admitted, dropped) == (True, [name(C, 0)])
    check_accounts(index, ROOM)


def test_a_guest_borrows_and_takes_from_itself_only(index: EntryIndex) -> None:
    for tenant in (A, B, C):
        admit(index, tenant, range(5), 1)
    admit(index, D, range(15), 1)
    assert not any(row.is_protected for row in rows(index) if row.name.tenant == D)
    admitted, dropped = index.admit(name(D, 20), 2, expires_unix_s=100, now_unix_s=0)
    assert (admitted, dropped) == (True, [name(D, 0), name(D, 1)])
    # Its room is taken back when somebody needs his share.
    admit(index, A, range(5, 10), 1)
    admit(index, B, range(5, 10), 1)
    admit(index, C, range(5, 10), 1)
    assert numbers_of(index, D) == []
    admitted, dropped = index.admit(name(D, 0), 1, expires_unix_s=100, now_unix_s=0)
    assert (admitted, dropped) == (False, [name(D, 0)])
    assert D not in index.usage()
    check_accounts(index, ROOM)


def test_a_guest_that_comes_back_when_somebody_left_has_a_share(index: EntryIndex) -> None:
    for tenant in (A, B, C, D):
        admit(index, tenant, range(2), 1)
    for number in range(2):
        assert index.remove(name(A, number))
    # It is there: what it put as a guest stays borrowed, and so does what it puts now.
    admit(index, D, range(2, 3), 1)
    assert not any(row.is_protected for row in rows(index) if row.name.tenant == D)
    for number in range(3):
        index.remove(name(D, number))
    admit(index, D, range(1), 1)
    assert [row.is_protected for row in rows(index) if row.name.tenant == D] == [True]
    check_accounts(index, ROOM)


def test_an_entry_larger_than_a_share_is_borrowed_as_a_whole(index: EntryIndex) -> None:
    admitted, dropped = index.admit(name(A, 0), 15, expires_unix_s=100, now_unix_s=0)
    assert (admitted, dropped) == (True, [])
    assert [row.is_protected for row in rows(index)] == [False]
    admit(index, B, range(10), 1)
    admit(index, C, range(5), 1)
    assert numbers_of(index, A) == [0]
    assert index.admit(name(C, 5), 1, expires_unix_s=100, now_unix_s=0) == (True, [name(A, 0)])
    check_accounts(index, ROOM)


def test_an_entry_larger_than_the_room_is_not_kept_and_replaces_nothing(index: EntryIndex) -> None:
    admit(index, A, range(2), 3)
    assert index.admit(name(A, 0), 31, expires_unix_s=100, now_unix_s=0) == (False, [name(A, 0)])
    assert numbers_of(index, A) == [1]
    assert index.admit(name(B, 0), 31, expires_unix_s=100, now_unix_s=0) == (False, [name(B, 0)])
    assert B not in index.usage()
    assert index.admit(name(C, 0), 30 - 3, expires_unix_s=100, now_unix_s=0)[0]
    check_accounts(index, ROOM)


def test_an_entry_that_cannot_fit_costs_its_tenant_nothing_else(index: EntryIndex) -> None:
    admit(index, B, range(10), 1)
    admit(index, A, range(5), 1)
    assert index.admit(name(A, 9), 25, expires_unix_s=100, now_unix_s=0)[0] is False
    assert numbers_of(index, A) == list(range(5))


def test_a_replaced_entry_is_young_and_counted_once(index: EntryIndex) -> None:
    admit(index, A, range(3), 3)
    assert index.admit(name(A, 0), 4, expires_unix_s=100, now_unix_s=0) == (True, [])
    assert numbers_of(index, A) == [1, 2, 0]
    assert index.usage()[A].num_bytes == 10
    assert index.usage()[A].evicted_entries == 0
    # The only entry of a tenant replaced: it keeps its share while others wait for one.
    admit(index, B, range(1), 1)
    admit(index, C, range(1), 1)
    admit(index, D, range(1), 1)
    assert index.admit(name(B, 0), 2, expires_unix_s=100, now_unix_s=0) == (True, [])
    assert [row.is_protected for row in rows(index) if row.name.tenant == B] == [True]
    check_accounts(index, ROOM)


def test_names_and_expired_entries_are_told(index: EntryIndex) -> None:
    for number, expires in enumerate((30, 10, 20)):
        index.admit(name(A, number, scope=number % 2), 1, expires_unix_s=expires, now_unix_s=0)
    index.admit(name(B, 9), 1, expires_unix_s=15, now_unix_s=0)
    assert index.expired(9.9, limit=9) == []
    assert index.expired(20.0, limit=9) == [name(A, 1, scope=1), name(B, 9), name(A, 2)]
    assert index.expired(99.0, limit=2) == [name(A, 1, scope=1), name(B, 9)]
    assert set(index.names(Bucket(tenant=A, scope=bytes(16)))) == {name(A, 0), name(A, 2)}
    assert len(index.names(Bucket(tenant=A, scope=None))) == 3
    assert index.names(Bucket(tenant=C, scope=None)) == []
    assert len(index.sizes()) == 4
    assert not index.remove(name(C, 0))


def test_a_batch_is_kept_as_a_whole_or_not_at_all(index: EntryIndex) -> None:
    admit(index, A, range(2), 1)

    def fail() -> None:
        with index.batch():
            index.remove(name(A, 0))
            with index.batch():
                index.admit(name(A, 5), 1, expires_unix_s=100, now_unix_s=0)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        fail()
    assert numbers_of(index, A) == [0, 1]
    admit(index, A, range(5, 6), 1)
    check_accounts(index, ROOM)


def test_an_index_in_a_file_is_there_again(tmp_path: Path) -> None:
    path = str(tmp_path / "index.db")
    index = EntryIndex(path, ROOM)
    admit(index, A, range(12), 1)
    before = rows(index)
    index.close()
    again = EntryIndex(path, ROOM)
    assert rows(again) == before
    check_accounts(again, ROOM)
    again.close()


def test_what_is_no_index_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    with pytest.raises(BackendDataError) as error:
        EntryIndex(str(path), ROOM)
    assert "index.db" in str(error.value.hint)
    index = EntryIndex(":memory:", ROOM)
    index.close()
    with pytest.raises(StoreError):
        index.usage()


def test_what_is_past_its_time_takes_no_room(index: EntryIndex) -> None:
    for tenant in (A, B):
        for number in range(10):
            index.admit(name(tenant, number), 1, expires_unix_s=10 + number, now_unix_s=0)
    # A tenant's own goes whenever it puts something; others' only when there is no room.
    admitted, dropped = index.admit(name(A, 50), 1, expires_unix_s=100, now_unix_s=14)
    assert (admitted, dropped) == (True, [name(A, number) for number in range(5)])
    assert numbers_of(index, B) == list(range(10))
    admitted, dropped = index.admit(name(C, 0), 16, expires_unix_s=100, now_unix_s=14)
    assert (admitted, dropped) == (True, [name(B, 0), name(B, 1)])
    # Nobody was evicted.
    assert {usage.evicted_entries for usage in index.usage().values()} == {0}
    check_accounts(index, ROOM)


def test_what_a_tenant_let_expire_does_not_count_against_its_share(index: EntryIndex) -> None:
    admit(index, A, range(10), 1)
    admitted, dropped = index.admit(name(A, 50), 10, expires_unix_s=200, now_unix_s=100)
    assert (admitted, dropped) == (True, [name(A, number) for number in range(10)])
    assert [row.is_protected for row in rows(index)] == [True]
    check_accounts(index, ROOM)


operations = st.lists(
    st.tuples(
        st.sampled_from(["admit"] * 6 + ["remove", "remove", "purge", "wait"]),
        st.sampled_from([A, B, C, D]),
        st.integers(0, 7),
        st.integers(0, 13) | st.integers(0, 35),
    ),
    max_size=60,
)


@settings(max_examples=400)
@given(operations=operations, capacity=st.integers(1, 40), share=st.integers(1, 40))
def test_nobody_takes_what_is_protected_and_every_account_is_exact(
    operations: list[tuple[str, bytes, int, int]], capacity: int, share: int
) -> None:
    room = Room(capacity_bytes=max(capacity, share), share_bytes=share)
    index = EntryIndex(":memory:", room)
    evicted: Counter[bytes] = Counter()
    now = 0
    for kind, tenant, number, size in operations:
        before = {row.name: row for row in rows(index)}
        target = name(tenant, number)
        if kind == "admit":
            admitted, dropped = index.admit(
                target, size, expires_unix_s=now + 5 + number, now_unix_s=now
            )
            evicted.update(n.tenant for n in dropped if n != target and before[n].expires > now)
            assert len(set(dropped)) == len(dropped)
            # What is dropped was there, but for the entry itself when it may not be kept.
            assert (target in dropped) is not admitted
            assert {row.name for row in rows(index)} == {*before, target} - set(dropped)
            # The order of those that stay is the order in which they were put.
            kept = [row.name for row in rows(index) if row.name != target]
            assert kept == [other for other in before if other in set(kept)]
        elif kind == "remove":
            assert index.remove(target) is (target in before)
        elif kind == "purge":
            for found in index.names(Bucket(tenant=tenant, scope=None)):
                index.remove(found)
        else:
            now += number
        after = {row.name: row for row in rows(index)}
        for other, row in before.items():
            if other.tenant != tenant:
                # Of another tenant, what is protected and in its time stays, as it was.
                assert not row.is_protected or row.expires <= now or after.get(other) == row
                assert after.get(other, row) == row
        check_accounts(index, room)
    for tenant, usage in index.usage().items():
        assert usage.evicted_entries == evicted[tenant]
    index.close()


@settings(max_examples=200)
@given(others=operations, sizes=st.lists(st.integers(0, 10), max_size=12))
def test_a_tenant_that_came_first_keeps_its_share_whatever_others_do(
    others: list[tuple[str, bytes, int, int]], sizes: list[int]
) -> None:
    index = EntryIndex(":memory:", ROOM)
    mine: dict[EntryName, int] = {}
    queue = list(enumerate(sizes))
    admit(index, A, range(200, 201), 0)
    for place, (kind, tenant, number, size) in enumerate(others):
        if tenant != A and kind == "admit":
            index.admit(name(tenant, number), size, expires_unix_s=100, now_unix_s=0)
        elif tenant != A:
            index.remove(name(tenant, number))
        if queue and place % 3 == 0:
            at, own_size = queue.pop()
            if sum(mine.values()) + own_size <= ROOM.share_bytes:
                mine[name(A, at)] = own_size
                assert index.admit(name(A, at), own_size, expires_unix_s=100, now_unix_s=0)[0]
        there = {row.name: row for row in rows(index)}
        assert all(entry in there and there[entry].is_protected for entry in mine)
    index.close()
