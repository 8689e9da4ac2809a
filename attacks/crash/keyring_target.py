"""The keyring on SQLite: what a child does to it, and what must hold after its end."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attacks.crash.journal import Journal, Line, read_journal
from attacks.crash.scopes import (
    CONVERSATIONS,
    ROOTS,
    TENANTS,
    find_owner,
    open_with_any_root,
    open_with_root,
)
from kvward.errors import EpochRetiredError, KeyringError, KeyUnavailableError
from kvward.scope.keyring import (
    KeyLifetimes,
    Keyring,
    SqliteDatabase,
    collect,
    erase_scope,
    erase_tenant,
    finish_purge,
    iter_status,
    pending_purges,
    reroot,
    rotate,
)
from kvward.scope.keyring.database import Transaction, Value
from kvward.scope.owner import ScopeOwner

# Keys of the first kind are never old enough to be collected, those of the second are soon.
LIFETIMES = {
    "lasting": KeyLifetimes(cache_s=1, request_s=1, max_age_s=100_000),
    "passing": KeyLifetimes(cache_s=1, request_s=1, max_age_s=1),
}
_NEWEST = 2**62


class PiecemealDatabase(SqliteDatabase):
    """A bad one: every statement is committed for itself."""

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin nothing."""
        with self._lock:
            yield _Single(self._connection)


class _Single:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, **values: Value) -> list[tuple[Value, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def lock(self, subject: bytes) -> None:
        """Hold nothing."""


DATABASES: dict[str, type[SqliteDatabase]] = {
    "sqlite": SqliteDatabase,
    "piecemeal": PiecemealDatabase,
}


class KeyringWork:
    """What a child does, one random operation at a time. What it notes before is an intention.

    Args:
        folder: Shared by all children.
        kind: Of `DATABASES`.
        lifetimes: Of `LIFETIMES`.
        alone: Whether nobody else has the keyring open; the root is changed only then.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        lifetimes: str,
        rng: random.Random,
        journal: Journal,
        *,
        alone: bool,
    ) -> None:
        self._alone = alone
        self._path, self._kind, self._rng, self._journal = folder / "keyring.db", kind, rng, journal
        self._lifetimes = LIFETIMES[lifetimes]
        self._keyring = self._open()

    def step(self) -> None:
        """Do one operation; another process may erase the tenant in the middle of it."""
        with suppress(KeyUnavailableError):
            self._step()

    def close(self) -> None:
        """Close the file."""
        self._keyring.database.close()

    def _open(self) -> Keyring:
        return open_with_any_root(self._path, self._lifetimes, database_type=DATABASES[self._kind])

    def _step(self) -> None:
        rng, keyring, write = self._rng, self._keyring, self._journal.write
        tenant, conversation = rng.choice(TENANTS), rng.choice(CONVERSATIONS)
        operation = rng.choices(
            ("keys", "rotate", "erase-scope", "erase-tenant", "collect", "reroot"),
            (60, 8, 14, 6, 4, 8 * self._alone),
        )[0]
        if operation == "keys":
            owner = find_owner(keyring, tenant, conversation)
            try:
                keys = keyring.writing_keys(owner)
            except EpochRetiredError:
                return  # rotated or erased in between by another process
            write(
                done="keys",
                tenant=tenant,
                scope=owner.scope_id.hex(),
                epoch=keys.epoch,
                key=hashlib.sha256(keys.seal_key.reveal()).hexdigest(),
                deployment=hashlib.sha256(keyring.deployment_key.reveal()).hexdigest(),
            )
        elif operation == "rotate":
            retire = rng.random() < 0.5
            keyring.tenant_key(tenant)
            write(about="rotate", tenant=tenant, destroys=retire)
            epoch = rotate(keyring, tenant, retire_old=retire)
            write(done="rotate", tenant=tenant, epoch=epoch, retired=retire)
        elif operation == "erase-scope":
            owner = find_owner(keyring, tenant, conversation)
            write(about="erase-scope", tenant=tenant, destroys=True)
            receipt = erase_scope(keyring, tenant, owner.scope_id)
            write(
                done="erase-scope",
                tenant=tenant,
                scope=receipt.scope_id,
                epoch=receipt.last_epoch,
            )
        elif operation == "erase-tenant":
            keyring.tenant_key(tenant)
            write(about="erase-tenant", tenant=tenant, destroys=True)
            receipt = erase_tenant(keyring, tenant)
            write(done="erase-tenant", tenant=tenant, epoch=receipt.last_epoch)
        elif operation == "collect":
            collect(keyring)
            for purge in pending_purges(keyring)[:2]:
                finish_purge(keyring, purge)
        else:
            new_root = ROOTS[keyring.root.root_id == ROOTS[0].root_id]
            write(about="reroot")
            reroot(keyring, new_root)
            write(done="reroot", root=new_root.root_id.hex())
            keyring.database.close()
            self._keyring = self._open()


class KeyringCheck:
    """Everything that must hold after the end of a writer.

    Args:
        folder: The children's.
        kind: Of `DATABASES`.
        lifetimes: Of `LIFETIMES`.
        alone: Whether there was one writer, so that its notes are in the order of its deeds.
    """

    def __init__(self, folder: Path, kind: str, lifetimes: str, *, alone: bool) -> None:
        self._path, self._kind, self._alone = folder / "keyring.db", kind, alone
        self._lifetimes = lifetimes
        self._journal = folder / "journal"

    def problems(self, found: Counter[str]) -> Iterator[str]:
        """Yield everything that is not as it should be; count what was met."""
        keyrings, refused = [], 0
        for root in ROOTS:
            try:
                keyrings.append(
                    open_with_root(
                        self._path,
                        root,
                        LIFETIMES[self._lifetimes],
                        database_type=DATABASES[self._kind],
                    )
                )
            except KeyUnavailableError as exc:
                refused += "another root key" in exc.message
        if (len(keyrings), refused) != (1, 1):
            yield f"{len(keyrings)} of two roots open the keyring, {refused} refused by name"
        for keyring in keyrings:
            try:
                yield from self._check(keyring, read_journal(self._journal), found)
            except KeyringError as exc:
                yield f"the keyring fails while it is looked at: {exc.message}"
            finally:
                keyring.database.close()

    def _check(self, keyring: Keyring, lines: list[Line], found: Counter[str]) -> Iterator[str]:
        with keyring.database.transaction() as transaction:
            rows = transaction.execute("SELECT scope_id, epoch, tenant_id FROM scope_keys")
        places = [(bytes(scope_id), int(epoch)) for scope_id, epoch, _ in rows]  # type: ignore[arg-type]
        if len(set(places)) != len(places):
            yield "a scope has two rows in one epoch"
        keys = {}
        for scope_id, _, tenant_id in rows:
            owner = ScopeOwner(tenant_id=bytes(tenant_id), scope_id=bytes(scope_id), epoch=_NEWEST)  # type: ignore[arg-type]
            for found_keys in keyring.reading_keys(owner):
                digest = hashlib.sha256(found_keys.seal_key.reveal()).hexdigest()
                keys[(owner.scope_id.hex(), found_keys.epoch)] = digest
        found["keys that unwrapped"] += len(keys)
        found["statuses"] += len(iter_status(keyring))
        yield from self._check_made(keyring, keys, lines)
        yield from self._check_erased(keyring, keys, lines)
        yield from self._check_two_processes(keyring)

    def _check_made(
        self, keyring: Keyring, keys: dict[tuple[str, int], str], lines: list[Line]
    ) -> Iterator[str]:
        deployment = hashlib.sha256(keyring.deployment_key.reveal()).hexdigest()
        alive: dict[tuple[str, int], tuple[str, str]] = {}
        handed_out: dict[tuple[str, int], set[str]] = {}
        for line in lines:
            if line.get("done") == "keys":
                place = (line["scope"], line["epoch"])
                alive[place] = (line["tenant"], line["key"])
                handed_out.setdefault(place, set()).add(line["key"])
                if line["deployment"] != deployment:
                    yield "the deployment's own key changed"
            elif line.get("destroys"):
                alive = {p: made for p, made in alive.items() if made[0] != line["tenant"]}
        if self._lifetimes == "passing":
            return
        if any(len(different) > 1 for different in handed_out.values()):
            yield "a scope had two keys in one epoch"
        if self._alone:
            for place, (_, key) in alive.items():
                if keys.get(place) != key:
                    yield "a key that was handed out is not there any more, and nobody ended it"

    def _check_erased(
        self, keyring: Keyring, keys: dict[tuple[str, int], str], lines: list[Line]
    ) -> Iterator[str]:
        lost: set[str] = set()
        made: list[Line] = []
        for line in lines:
            done = line.get("done")
            if done == "keys":
                made.append(line)
            elif done in {"erase-scope", "erase-tenant", "rotate"} and line.get("retired", True):
                for ended in made:
                    same = ended["tenant"] == line["tenant"] and (
                        done != "erase-scope" or ended["scope"] == line["scope"]
                    )
                    last = line["epoch"] - (done == "rotate")
                    if same and ended["epoch"] <= last:
                        lost.add(ended["key"])
        if lost & set(keys.values()):
            yield "a key of something that was erased is there again"
        # A token of an epoch that ended writes nothing, whatever has been erased since.
        for line in lines[-40:]:
            if line.get("done") == "erase-scope":
                owner = ScopeOwner(
                    tenant_id=keyring.tenant_id(line["tenant"]),
                    scope_id=bytes.fromhex(line["scope"]),
                    epoch=line["epoch"],
                )
                try:
                    keyring.writing_keys(owner)
                    yield "a token of an erased scope writes again"
                except (EpochRetiredError, KeyUnavailableError):
                    pass
                if keyring.reading_keys(owner):
                    yield "a token of an erased scope reads again"

    def _check_two_processes(self, keyring: Keyring) -> Iterator[str]:
        other = open_with_any_root(
            self._path, LIFETIMES[self._lifetimes], database_type=DATABASES[self._kind]
        )
        try:
            for tenant in TENANTS:
                ours = keyring.writing_keys(find_owner(keyring, tenant, CONVERSATIONS[0]))
                theirs = other.writing_keys(find_owner(other, tenant, CONVERSATIONS[0]))
                if not ours.seal_key.matches(theirs.seal_key):
                    yield "two who ask for the keys of one scope get different ones"
        finally:
            other.database.close()
