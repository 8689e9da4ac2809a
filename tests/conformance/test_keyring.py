"""One suite for every keyring database: who gets which key, and what is gone afterwards."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keyrings import LIFETIMES, ROOT, Clock, create_in_process, open_keyring, owner
from kvward.errors import (
    EpochRetiredError,
    KeyringUnavailableError,
    KeyUnavailableError,
    ReceiptError,
)
from kvward.scope import RootKey
from kvward.scope.keyring import (
    CachedEpochs,
    CachedKeys,
    Keyring,
    LocalRoot,
    collect,
    derive_receipt_key,
    erase_scope,
    erase_tenant,
    finish_purge,
    iter_status,
    pending_purges,
    reroot,
    rotate,
    sign_receipt,
    verify_receipt,
)
from kvward.scope.owner import ScopeOwner
from services.postgres import PostgresServer


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a picklable way to the same database: ("sqlite", path) or ("postgres", dsn)."""
    if request.param == "sqlite":
        return ("sqlite", str(tmp_path / "keyring.db"))
    import psycopg

    server = request.getfixturevalue("postgres")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for table in ("meta", "tenants", "scope_keys", "tombstones", "purges"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
    return ("postgres", server.dsn)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keyring(place: Any, clock: Clock) -> Iterator[Keyring]:
    keyring = open_keyring(place, clock)
    yield keyring
    keyring.database.close()


@pytest.fixture
def replica(place: Any, clock: Clock) -> Iterator[Keyring]:
    keyring = open_keyring(place, clock)
    yield keyring
    keyring.database.close()


def test_replicas_agree_on_everything(keyring: Keyring, replica: Keyring) -> None:
    assert keyring.tenant_key("a").matches(replica.tenant_key("a"))
    assert keyring.token_key.matches(replica.token_key)
    assert owner(keyring) == owner(replica)
    ours = keyring.writing_keys(owner(keyring))
    theirs = replica.writing_keys(owner(replica))
    assert ours.seal_key.matches(theirs.seal_key)
    assert ours.name_key.matches(theirs.name_key)
    (read,) = replica.reading_keys(owner(replica))
    assert read.seal_key.matches(ours.seal_key)
    assert (read.tenant_bucket, read.scope_bucket) == (ours.tenant_bucket, ours.scope_bucket)


def test_tenants_and_scopes_share_nothing(keyring: Keyring) -> None:
    keys = [
        keyring.writing_keys(owner(keyring, tenant, conversation))
        for tenant in ("a", "b")
        for conversation in (b"c", b"d")
    ]
    assert len({k.seal_key.reveal() for k in keys}) == 4
    assert len({k.name_key.reveal() for k in keys}) == 4
    assert len({k.scope_bucket for k in keys}) == 4
    assert keys[0].tenant_bucket == keys[1].tenant_bucket != keys[2].tenant_bucket


def test_nothing_is_written_before_something_is_stored(keyring: Keyring) -> None:
    assert keyring.reading_keys(owner(keyring)) == []
    assert [status.num_keys for status in iter_status(keyring)] == [0]
    keyring.writing_keys(owner(keyring))
    assert [status.num_keys for status in iter_status(keyring)] == [1]


def test_a_scope_of_one_tenant_does_not_open_for_another(keyring: Keyring) -> None:
    mine = owner(keyring)
    keyring.writing_keys(mine)
    keyring.tenant_key("b")
    stolen = replace(mine, tenant_id=keyring.tenant_id("b"))
    assert keyring.reading_keys(stolen) == []


def test_rotation_writes_new_and_reads_old_until_it_drained(
    keyring: Keyring, replica: Keyring, clock: Clock
) -> None:
    old = keyring.writing_keys(owner(keyring))
    assert rotate(keyring, "a", retire_old=False) == 1
    after = owner(replica)
    assert after.epoch == 1
    assert [k.epoch for k in replica.reading_keys(after)] == [0]
    new = replica.writing_keys(after)
    assert not new.seal_key.matches(old.seal_key)
    assert not new.name_key.matches(old.name_key)
    assert new.scope_bucket == old.scope_bucket
    assert [k.epoch for k in keyring.reading_keys(after)] == [1, 0]
    with pytest.raises(EpochRetiredError):
        keyring.writing_keys(replace(after, epoch=0))
    with pytest.raises(EpochRetiredError):
        keyring.writing_keys(replace(after, epoch=2))
    (status,) = iter_status(keyring)
    assert (status.num_draining, status.oldest_epoch, status.epoch) == (1, 0, 1)
    clock.now += 50
    assert collect(keyring) == 0
    keyring.writing_keys(after)
    clock.now += LIFETIMES.max_age_s + LIFETIMES.cache_s - 49
    assert collect(keyring) == 1
    (status,) = iter_status(keyring)
    assert (status.num_draining, status.oldest_epoch, status.num_keys) == (0, 1, 1)
    assert keyring.reading_keys(replace(after, epoch=0)) == []


def test_rotation_can_retire_the_old_epoch_at_once(keyring: Keyring) -> None:
    before = owner(keyring)
    keyring.writing_keys(before)
    rotate(keyring, "a", retire_old=True)
    assert keyring.reading_keys(before) == []
    assert keyring.reading_keys(owner(keyring)) == []
    assert [status.num_keys for status in iter_status(keyring)] == [0]


def test_erasing_a_conversation_ends_it_and_nothing_else(
    keyring: Keyring, replica: Keyring
) -> None:
    mine, other = owner(keyring), owner(keyring, conversation=b"d")
    erased, kept = keyring.writing_keys(mine), keyring.writing_keys(other)
    receipt = erase_scope(keyring, "a", mine.scope_id)
    assert (receipt.keys_destroyed, receipt.last_epoch) == (1, 0)
    assert replica.reading_keys(mine) == []
    with pytest.raises(EpochRetiredError):
        replica.writing_keys(mine)
    (still,) = replica.reading_keys(other)
    assert still.seal_key.matches(kept.seal_key)
    again = owner(replica)
    assert (again.scope_id, again.epoch) == (mine.scope_id, 1)
    assert replica.reading_keys(again) == []
    fresh = replica.writing_keys(again)
    assert not fresh.seal_key.matches(erased.seal_key)
    assert not fresh.name_key.matches(erased.name_key)
    assert erase_scope(keyring, "a", mine.scope_id).last_epoch == 1
    assert owner(keyring).epoch == 2


def test_rotation_goes_above_every_tombstone(keyring: Keyring) -> None:
    mine = owner(keyring)
    for _ in range(3):
        erase_scope(keyring, "a", mine.scope_id)
    assert owner(keyring).epoch == 3
    assert rotate(keyring, "a", retire_old=False) == 4
    assert owner(keyring).epoch == 4


def test_erasing_a_tenant_ends_all_of_it_and_no_other(keyring: Keyring, replica: Keyring) -> None:
    mine, other = owner(keyring), owner(keyring, "b")
    old_key = keyring.tenant_key("a")
    keyring.writing_keys(mine)
    kept = keyring.writing_keys(other)
    receipt = erase_tenant(keyring, "a")
    assert receipt.keys_destroyed == 2
    assert replica.reading_keys(mine) == []
    with pytest.raises(KeyUnavailableError):
        replica.writing_keys(mine)
    (still,) = replica.reading_keys(other)
    assert still.seal_key.matches(kept.seal_key)
    again = erase_tenant(keyring, "a")
    assert (again.keys_destroyed, again.last_epoch) == (0, receipt.last_epoch)
    with pytest.raises(KeyUnavailableError, match="has no key"):
        erase_tenant(keyring, "nobody")
    # The tenant comes back as somebody new.
    assert not replica.tenant_key("a").matches(old_key)
    again = owner(replica)
    assert again.scope_id != mine.scope_id
    assert again.epoch == 1
    replica.writing_keys(again)
    assert replica.reading_keys(mine) == []
    with pytest.raises(EpochRetiredError):
        replica.writing_keys(mine)


def test_purges_stay_pending_until_they_are_finished(
    keyring: Keyring, replica: Keyring, clock: Clock
) -> None:
    keys = keyring.writing_keys(owner(keyring))
    erase_scope(keyring, "a", owner(keyring).scope_id)
    erase_tenant(keyring, "a")
    first, second = pending_purges(replica)
    assert (first.tenant_bucket, first.scope_bucket) == (keys.tenant_bucket, keys.scope_bucket)
    assert (second.tenant_bucket, second.scope_bucket) == (keys.tenant_bucket, None)
    assert first.sweep_again_unix_s > clock.now + LIFETIMES.erasure_bound_s
    finish_purge(replica, first)
    assert pending_purges(keyring) == [second]


def test_collection_waits_for_the_last_block_that_a_key_may_have_sealed(
    keyring: Keyring, clock: Clock
) -> None:
    keyring.writing_keys(owner(keyring))
    clock.now += LIFETIMES.max_age_s
    keyring.writing_keys(owner(keyring))
    clock.now += LIFETIMES.max_age_s + LIFETIMES.cache_s
    assert collect(keyring) == 0
    clock.now += 2
    assert keyring.reading_keys(owner(keyring)) == []
    assert collect(keyring) == 1


def test_a_new_root_takes_over_and_the_old_one_opens_nothing(
    keyring: Keyring, place: Any, clock: Clock
) -> None:
    keys = keyring.writing_keys(owner(keyring))
    token_key = keyring.token_key
    assert reroot(keyring, LocalRoot(RootKey(b"n" * 32))) == 3
    with pytest.raises(KeyUnavailableError, match="another root key"):
        open_keyring(place, clock)
    after = open_keyring(place, clock, root=RootKey(b"n" * 32))
    assert after.token_key.matches(token_key)
    (read,) = after.reading_keys(owner(after))
    assert read.seal_key.matches(keys.seal_key)
    keyring.forget_unwrapped()
    with pytest.raises(KeyUnavailableError):
        keyring.reading_keys(owner(after))
    after.database.close()


def test_a_keyring_of_another_deployment_is_refused(
    keyring: Keyring, place: Any, clock: Clock
) -> None:
    with pytest.raises(KeyUnavailableError, match="another deployment"):
        open_keyring(place, clock, deployment="e")


def test_a_row_moved_to_another_place_does_not_unwrap(keyring: Keyring) -> None:
    mine, other = owner(keyring), owner(keyring, conversation=b"d")
    keyring.writing_keys(mine)
    keyring.writing_keys(other)
    with keyring.database.transaction() as transaction:
        (row,) = transaction.execute(
            "SELECT wrapped FROM scope_keys WHERE scope_id = :scope_id", scope_id=mine.scope_id
        )
        transaction.execute(
            "UPDATE scope_keys SET wrapped = :wrapped WHERE scope_id = :scope_id",
            wrapped=bytes(row[0]),  # type: ignore[arg-type]
            scope_id=other.scope_id,
        )
    with pytest.raises(KeyUnavailableError, match="does not unwrap"):
        keyring.reading_keys(other)
    keyring.tenant_key("b")
    with keyring.database.transaction() as transaction:
        (row,) = transaction.execute(
            "SELECT wrapped FROM tenants WHERE tenant_id = :t", t=keyring.tenant_id("a")
        )
        transaction.execute(
            "UPDATE tenants SET wrapped = :wrapped WHERE tenant_id = :t",
            wrapped=bytes(row[0]),  # type: ignore[arg-type]
            t=keyring.tenant_id("b"),
        )
    with pytest.raises(KeyUnavailableError, match="does not unwrap"):
        keyring.tenant_key("b")


def test_threads_that_create_one_scope_at_once_end_with_one_key(
    keyring: Keyring, replica: Keyring
) -> None:
    owners = [owner(keyring, conversation=bytes([number])) for number in range(8)]

    def create(job: tuple[Keyring, ScopeOwner]) -> bytes:
        return job[0].writing_keys(job[1]).seal_key.reveal()

    jobs = [(ring, o) for o in owners for ring in (keyring, replica, keyring, replica)]
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(create, jobs))
    for number in range(8):
        assert len(set(keys[4 * number : 4 * number + 4])) == 1
    assert len(set(keys)) == 8


def test_processes_that_create_one_scope_at_once_end_with_one_key(place: Any) -> None:
    context = multiprocessing.get_context("spawn")
    queue, barrier = context.Queue(), context.Barrier(3)
    tenants = [f"tenant-{number}" for number in range(20)]
    processes = [
        context.Process(target=create_in_process, args=(place, tenants, queue, barrier))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert results[0] == results[1] == results[2]
    assert len(set(results[0])) == len(tenants)


def test_a_cached_key_ends_within_its_bound(keyring: Keyring, replica: Keyring) -> None:
    monotonic = Clock()
    cached = CachedKeys(replica, cache_s=LIFETIMES.cache_s, monotonic_s=monotonic)
    mine = owner(keyring)
    cached.writing_keys(mine)
    assert len(cached.reading_keys(mine)) == 1
    erase_scope(keyring, "a", mine.scope_id)
    monotonic.now += LIFETIMES.cache_s - 0.01
    assert len(cached.reading_keys(mine)) == 1
    monotonic.now += 0.01
    assert list(cached.reading_keys(mine)) == []
    with pytest.raises(EpochRetiredError):
        cached.writing_keys(mine)


def test_what_the_cache_holds_can_be_forgotten_at_once(keyring: Keyring) -> None:
    cached = CachedKeys(keyring, cache_s=1000)
    mine = owner(keyring)
    cached.writing_keys(mine)
    assert len(cached.reading_keys(mine)) == 1
    erase_scope(keyring, "a", mine.scope_id)
    cached.forget()
    assert list(cached.reading_keys(mine)) == []


def test_that_nothing_is_stored_is_remembered_for_a_second_only(
    keyring: Keyring, replica: Keyring
) -> None:
    monotonic = Clock()
    cached = CachedKeys(replica, cache_s=LIFETIMES.cache_s, monotonic_s=monotonic)
    mine = owner(keyring)
    assert list(cached.reading_keys(mine)) == []
    keyring.writing_keys(mine)
    assert list(cached.reading_keys(mine)) == []
    monotonic.now += 1.0
    assert len(cached.reading_keys(mine)) == 1


def test_a_cached_epoch_ends_within_its_bound(keyring: Keyring, replica: Keyring) -> None:
    monotonic = Clock()
    cached = CachedEpochs(replica, cache_s=LIFETIMES.cache_s, monotonic_s=monotonic)
    identity = owner(keyring).scope_id
    assert cached.writing_epoch("a", identity) == 0
    erase_scope(keyring, "a", identity)
    assert cached.writing_epoch("a", identity) == 0
    monotonic.now += LIFETIMES.cache_s
    assert cached.writing_epoch("a", identity) == 1


def test_a_receipt_verifies_and_a_changed_one_does_not(keyring: Keyring) -> None:
    keyring.writing_keys(owner(keyring))
    receipt = erase_tenant(keyring, "a")
    assert receipt.effective_unix_s - receipt.erased_unix_s == 9
    public_key = derive_receipt_key(keyring.receipt_seed)
    text = sign_receipt(receipt, keyring.receipt_seed)
    assert verify_receipt(text, public_key=public_key) == receipt
    other = derive_receipt_key(b"o" * 32)
    for changed, key in [
        (text.replace('"keys_destroyed": 2', '"keys_destroyed": 3'), public_key),
        (text.replace('"keys_destroyed": 2', '"keys_destroyed": true'), public_key),
        (text.replace('"d"', '"e"'), public_key),
        (text.replace("{", '{"more": 1, ', 1), public_key),
        ("[]", public_key),
        ("not JSON", public_key),
        (text, other),
        (text, "AAAA"),
    ]:
        with pytest.raises(ReceiptError):
            verify_receipt(changed, public_key=key)


def test_database_holds_no_name_and_no_plain_key(
    keyring: Keyring, place: Any, tmp_path: Path
) -> None:
    tenant = "a-tenant-with-a-long-name"
    keys = keyring.writing_keys(owner(keyring, tenant, b"conversation-subject"))
    secrets = [
        tenant.encode(), b"conversation-subject", keys.seal_key.reveal(), keys.name_key.reveal(),
        keyring.tenant_key(tenant).reveal(), keyring.deployment_key.reveal(), ROOT.reveal(),
    ]  # fmt: skip
    with keyring.database.transaction() as transaction:
        rows: list[Any] = []
        for table in ("meta", "tenants", "scope_keys", "tombstones", "purges"):
            rows += transaction.execute(f"SELECT * FROM {table}")
    values = [bytes(v) if isinstance(v, memoryview) else v for row in rows for v in row]
    written = b"|".join(v if isinstance(v, bytes) else str(v).encode() for v in values)
    assert not any(secret in written for secret in secrets)


def test_after_an_erasure_the_files_of_sqlite_hold_no_wrapped_key(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / "keyring.db"
    keyring = open_keyring(("sqlite", str(path)), clock)
    mine = owner(keyring)
    keyring.writing_keys(mine)
    with keyring.database.transaction() as transaction:
        wrapped = transaction.execute(
            "SELECT wrapped FROM scope_keys UNION SELECT wrapped FROM tenants"
        )
    pieces = [bytes(value)[13:29] for (value,) in wrapped]  # type: ignore[arg-type]
    assert len(pieces) == 2

    def written() -> bytes:
        return b"".join(file.read_bytes() for file in tmp_path.iterdir())

    assert all(piece in written() for piece in pieces)
    erase_tenant(keyring, "a")
    assert not any(piece in written() for piece in pieces)
    keyring.database.close()


def test_a_database_that_is_gone_is_a_clear_error(place: Any, clock: Clock) -> None:
    keyring = open_keyring(place, clock)
    mine = owner(keyring)
    if place[0] == "postgres":
        import psycopg

        keyring.database._dsn = "host=127.0.0.1 port=1 connect_timeout=2"  # type: ignore[attr-defined]
        keyring.database._connection.close()  # type: ignore[attr-defined]
        assert psycopg.Error
    else:
        keyring.database.close()
    with pytest.raises(KeyringUnavailableError, match="does not answer"):
        keyring.reading_keys(mine)


def test_a_database_that_was_gone_is_left_alone_and_then_asked_again(
    postgres: PostgresServer,
) -> None:
    from kvward.scope.keyring.postgres import PostgresDatabase

    database = PostgresDatabase(postgres.dsn, timeout_s=2.0, retry_after_s=0.3)
    database._dsn = "host=127.0.0.1 port=1 connect_timeout=2"
    database.close()
    with (
        pytest.raises(KeyringUnavailableError, match="does not answer"),
        database.transaction(),
    ):
        pass
    database._dsn = postgres.dsn
    with pytest.raises(KeyringUnavailableError, match="a moment ago"), database.transaction():
        pass
    time.sleep(0.31)
    with database.transaction() as transaction:
        assert transaction.execute("SELECT 1") == [(1,)]
    database.close()
