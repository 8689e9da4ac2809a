"""After an erasure, from its bound on: nothing of it opens anywhere, and all else goes on."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from erasures import (
    HASHES,
    LATE,
    LIFETIMES,
    find_owner,
    iter_raw,
    keep_using,
    load,
    open_backend,
    open_short_keyring,
    open_store,
    opens,
    remaining_keys,
    save,
)
from keyrings import Place, open_place
from kvward.errors import (
    EpochRetiredError,
    KeyringError,
    KeyUnavailableError,
    ReceiptError,
)
from kvward.scope import RootKey
from kvward.scope.derive import derive_scope_bucket
from kvward.scope.keyring import (
    CachedKeys,
    ErasureReceipt,
    Keyring,
    LocalRoot,
    collect,
    derive_receipt_key,
    erase_scope,
    erase_tenant,
    pending_purges,
    reroot,
    sign_receipt,
    verify_receipt,
)
from kvward.scope.owner import ScopeOwner
from kvward.store import Bucket
from kvward.testing.clocks import ManualClock
from services.postgres import PostgresServer

TABLES = ("meta", "tenants", "scope_keys", "tombstones", "purges")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        return ("sqlite", str(tmp_path / "keyring.db"))
    import psycopg

    server = request.getfixturevalue("postgres")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for table in TABLES:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
    return ("postgres", server.dsn)


@pytest.fixture
def keyring(place: Place) -> Iterator[Keyring]:
    keyring = open_short_keyring(place)
    yield keyring
    keyring.database.close()


@dataclass(frozen=True, kw_only=True)
class Erased:
    """A store after an erasure that a second process did not hear of at once."""

    folder: Path
    copy: Path
    receipt: ErasureReceipt
    returned_unix_s: float
    owners: dict[str, ScopeOwner]
    gone: set[str]
    last: dict[str, dict[str, float]]
    counts: dict[str, dict[str, int]]


@pytest.fixture(params=["scope", "tenant"])
def erased(
    request: pytest.FixtureRequest, place: Place, keyring: Keyring, tmp_path: Path
) -> Erased:
    folder = tmp_path / "store"
    backend = open_backend(folder)
    store = open_store(backend, keyring)
    owners = {
        "erased": find_owner(keyring, "a", b"erased"),
        "sister": find_owner(keyring, "a", b"sister"),
        "other": find_owner(keyring, "b", b"erased"),
    }
    for whose in owners.values():
        assert all(save(store, whose))
    shutil.copytree(folder / "entries", tmp_path / "copy" / "entries")
    context = multiprocessing.get_context("spawn")
    queue, barrier, stop = context.Queue(), context.Barrier(2), context.Event()
    process = context.Process(
        target=keep_using, args=(place, str(folder), owners, queue, barrier, stop)
    )
    process.start()
    barrier.wait(timeout=60)
    # Nothing of the scope has been looked up for a while, or just now: both have to end.
    time.sleep(0.3)
    if request.param == "scope":
        receipt = erase_scope(keyring, "a", owners["erased"].scope_id)
        gone = {"erased"}
    else:
        receipt = erase_tenant(keyring, "a")
        gone = {"erased", "sister"}
    returned = time.time()
    time.sleep(LIFETIMES.erasure_bound_s + 1.5)
    stop.set()
    last, counts = queue.get(timeout=60)
    process.join()
    assert process.exitcode == 0
    backend.close()
    return Erased(
        folder=folder,
        copy=tmp_path / "copy",
        receipt=receipt,
        returned_unix_s=returned,
        owners=owners,
        gone=gone,
        last=last,
        counts=counts,
    )


def test_nothing_erased_opens_and_all_else_goes_on(
    erased: Erased, place: Place, keyring: Keyring
) -> None:
    bound = erased.returned_unix_s + LIFETIMES.erasure_bound_s
    assert bound <= erased.receipt.effective_unix_s + 1
    for name, last in erased.last.items():
        assert erased.counts[name]["hit"] > 0
        if name in erased.gone:
            assert last["hit"] < bound
            assert last["kept"] < bound
            # The caches were warm: it went on for a while, or the test would show nothing.
            assert last["hit"] > erased.returned_unix_s
        else:
            assert last["hit"] > bound
            assert last["kept"] > bound
    # In this process, which asks every time, nothing has opened since.
    store = open_store(open_backend(erased.folder), keyring)
    for name, whose in erased.owners.items():
        assert any(load(store, whose, [*HASHES, LATE])) == (name not in erased.gone)

    # The store: what lies there in the name of what was erased opens under no key that is left,
    # the second process's late entries and those of a copy made before included.
    keys = remaining_keys(keyring)
    num_opened = 0
    gone_buckets = {(purge.tenant_bucket, purge.scope_bucket) for purge in pending_purges(keyring)}
    for folder in (erased.folder, erased.copy):
        num_of_erased = 0
        for name, sealed in iter_raw(folder):
            is_gone = bool({(name.tenant, name.scope), (name.tenant, None)} & gone_buckets)
            num_of_erased += is_gone
            assert opens(sealed, name, keys) is not is_gone
            num_opened += not is_gone
        assert num_of_erased >= 2 * len(HASHES)
    assert num_opened > 0

    # The copy put back into the store is of no use either.
    shutil.copytree(erased.copy / "entries", erased.folder / "entries", dirs_exist_ok=True)
    restored = open_backend(erased.folder)
    again = open_store(restored, keyring)
    for name, whose in erased.owners.items():
        assert any(load(again, whose)) == (name not in erased.gone)
    # A purge reaches what came back and what came late.
    for purge in pending_purges(keyring):
        restored.purge(Bucket(tenant=purge.tenant_bucket, scope=purge.scope_bucket))
    left = {(name.tenant, name.scope) for name, _ in iter_raw(erased.folder)}
    assert not any(
        bucket in left or bucket[0] in {tenant for tenant, _ in left if bucket[1] is None}
        for bucket in gone_buckets
    )
    restored.close()


def test_receipt_verifies_by_its_public_key_and_not_after_any_change(keyring: Keyring) -> None:
    whose = find_owner(keyring, "a", b"erased")
    keyring.writing_keys(whose)
    receipt = erase_scope(keyring, "a", whose.scope_id)
    public_key = derive_receipt_key(keyring.receipt_seed)
    text = sign_receipt(receipt, keyring.receipt_seed)
    assert verify_receipt(text, public_key=public_key) == receipt
    assert (receipt.scope_id, receipt.keys_destroyed) == (whose.scope_id.hex(), 1)
    values = json.loads(text)
    for field, value in values.items():
        changes = [value + 1, value - 1] if isinstance(value, int) else [value + "0", value[1:]]
        for changed in changes:
            with pytest.raises(ReceiptError):
                verify_receipt(json.dumps(values | {field: changed}), public_key=public_key)
        with pytest.raises(ReceiptError):
            verify_receipt(
                json.dumps({k: v for k, v in values.items() if k != field}), public_key=public_key
            )


@pytest.mark.parametrize("kind", ["scope", "tenant"])
def test_a_token_from_before_writes_nothing_and_one_from_after_does(
    keyring: Keyring, tmp_path: Path, kind: str
) -> None:
    backend = open_backend(tmp_path / "store")
    store = open_store(backend, keyring)
    old = find_owner(keyring, "a", b"erased")
    assert all(save(store, old))
    if kind == "scope":
        erase_scope(keyring, "a", old.scope_id)
    else:
        erase_tenant(keyring, "a")
    assert not any(save(store, old))
    with pytest.raises((EpochRetiredError, KeyUnavailableError)):
        keyring.writing_keys(old)
    new = find_owner(keyring, "a", b"erased")
    assert new.epoch == old.epoch + 1
    time.sleep(0.02)  # the tenant was left alone for a moment, as its key was gone
    assert all(save(store, new))
    assert all(load(store, new))
    # Nor later: not with any epoch but its own, and not after a collection.
    collect(keyring)
    for epoch in (old.epoch, new.epoch + 1, 2**40):
        with pytest.raises(EpochRetiredError):
            keyring.writing_keys(replace(new, epoch=epoch))
    with pytest.raises(EpochRetiredError):
        keyring.writing_keys(old)
    assert not any(load(store, old))
    backend.close()


def test_a_backup_opens_nothing_once_its_root_is_gone(
    place: Place, keyring: Keyring, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    backend = open_backend(folder)
    store = open_store(backend, keyring)
    whose = find_owner(keyring, "a", b"erased")
    kept = find_owner(keyring, "a", b"kept")
    assert all(save(store, whose))
    assert all(save(store, kept))
    rows = dump(place)
    erase_scope(keyring, "a", whose.scope_id)
    new = RootKey(b"n" * 32)
    reroot(keyring, LocalRoot(new))
    after = open_short_keyring(place, root=new)
    assert not any(load(open_store(backend, after), whose))
    assert all(load(open_store(backend, after), kept))
    after.database.close()

    restore(place, rows)
    with pytest.raises(KeyUnavailableError, match="another root key"):
        open_short_keyring(place, root=new)
    # Nor when somebody writes the new root's name into the backup.
    database = open_place(place)
    with database.transaction() as transaction:
        transaction.execute(
            "UPDATE meta SET value = :value WHERE name = 'root-id'", value=LocalRoot(new).root_id
        )
    database.close()
    with pytest.raises(KeyUnavailableError, match="does not unwrap"):
        open_short_keyring(place, root=new)
    backend.close()


def test_a_backup_brings_an_erased_scope_back_as_long_as_its_root_is_there(
    place: Place, keyring: Keyring, tmp_path: Path
) -> None:
    # What the receipt says of backups is true, and so the test before can fail.
    backend = open_backend(tmp_path / "store")
    whose = find_owner(keyring, "a", b"erased")
    assert all(save(open_store(backend, keyring), whose))
    rows = dump(place)
    erase_scope(keyring, "a", whose.scope_id)
    assert not any(load(open_store(backend, keyring), whose))
    restore(place, rows)
    assert all(load(open_store(backend, keyring), whose))
    backend.close()


def dump(place: Place) -> dict[str, list[Any]]:
    database = open_place(place)
    with database.transaction() as transaction:
        rows = {table: list(transaction.execute(f"SELECT * FROM {table}")) for table in TABLES}
    database.close()
    return rows


def restore(place: Place, tables: dict[str, list[Any]]) -> None:
    database = open_place(place)
    with database.transaction() as transaction:
        for table, rows in tables.items():
            transaction.execute(f"DELETE FROM {table}")
            for row in rows:
                names = [f"value_{chr(ord('a') + place)}" for place in range(len(row))]
                marks = ", ".join(f":{name}" for name in names)
                transaction.execute(
                    f"INSERT INTO {table} VALUES ({marks})", **dict(zip(names, row, strict=True))
                )
    database.close()


def test_an_erasure_beside_a_reader_leaves_no_key_or_says_so(tmp_path: Path) -> None:
    path = tmp_path / "keyring.db"
    keyring = open_short_keyring(("sqlite", str(path)))
    whose = find_owner(keyring, "a", b"erased")
    keyring.writing_keys(whose)
    with keyring.database.transaction() as transaction:
        ((wrapped,),) = transaction.execute("SELECT wrapped FROM scope_keys")
    # As a backup does, or somebody who looks at the file.
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM meta").fetchall()
    keyring.database._connection.execute("PRAGMA busy_timeout = 100").fetchall()  # type: ignore[attr-defined]
    told = False
    try:
        erase_scope(keyring, "a", whose.scope_id)
    except KeyringError:
        told = True
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    reader.close()
    keyring.database.close()
    assert told or bytes(wrapped) not in written  # type: ignore[arg-type]


def test_a_request_that_begins_with_remembered_keys_ends_within_the_bound(
    keyring: Keyring, tmp_path: Path
) -> None:
    monotonic = ManualClock(0.0)
    cached = CachedKeys(keyring, cache_s=LIFETIMES.cache_s, monotonic_s=monotonic)
    backend = open_backend(tmp_path / "store")
    store = open_store(backend, cached)
    whose = find_owner(keyring, "a", b"erased")
    assert all(save(store, whose))
    assert all(load(store, whose))
    # An erasure returns; a moment before the replica asks again, a request begins.
    receipt = erase_scope(keyring, "a", whose.scope_id)
    monotonic.advance(LIFETIMES.cache_s - 0.01)
    began_s = monotonic()
    read = all(load(store, whose))
    backend.close()
    assert read, "nothing was read; the test shows nothing"
    ends_s = began_s + LIFETIMES.request_s
    assert ends_s <= LIFETIMES.erasure_bound_s
    assert receipt.erased_unix_s + ends_s <= receipt.effective_unix_s


def test_buckets_of_what_was_erased_are_those_that_stores_purge(keyring: Keyring) -> None:
    whose = find_owner(keyring, "a", b"erased")
    key = keyring.tenant_key("a")
    buckets = (keyring.tenant_bucket(whose.tenant_id), derive_scope_bucket(key, whose.scope_id))
    keyring.writing_keys(whose)
    erase_scope(keyring, "a", whose.scope_id)
    erase_tenant(keyring, "a")
    purges = [(p.tenant_bucket, p.scope_bucket) for p in pending_purges(keyring)]
    assert purges == [buckets, (buckets[0], None)]
