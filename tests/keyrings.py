"""Keyrings for tests: the same one again from another thread or process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.scope.keyring import (
    Database,
    KeyLifetimes,
    Keyring,
    LocalRoot,
    SqliteDatabase,
)
from kvward.scope.owner import ScopeOwner
from kvward.terms import SharingLevel

Place = tuple[str, str]
ROOT = RootKey(b"r" * 32)
LIFETIMES = KeyLifetimes(cache_s=5, request_s=3, max_age_s=100)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def open_postgres(dsn: str) -> Database:
    from kvward.scope.keyring.postgres import PostgresDatabase

    return PostgresDatabase(dsn, timeout_s=5.0)


def open_place(place: Place) -> Database:
    kind, address = place
    return SqliteDatabase(Path(address)) if kind == "sqlite" else open_postgres(address)


def open_keyring(
    place: Place, clock: Callable[[], float], *, root: RootKey = ROOT, deployment: str = "d"
) -> Keyring:
    database = open_place(place)
    try:
        return Keyring(
            database, LocalRoot(root), deployment=deployment, lifetimes=LIFETIMES, now_unix_s=clock
        )
    except BaseException:
        database.close()
        raise


def scope_id(keyring: Keyring, tenant: str, conversation: bytes = b"c") -> bytes:
    scope = Scope(
        deployment="d", tenant=tenant, level=SharingLevel.CONVERSATION, subject=conversation,
        epoch=0,
    )  # fmt: skip
    return ScopeIssuer(keyring, keyring.token_key, epochs=keyring, deployment="d").scope_id(scope)


def owner(keyring: Keyring, tenant: str = "a", conversation: bytes = b"c") -> ScopeOwner:
    identity = scope_id(keyring, tenant, conversation)
    return ScopeOwner(
        tenant_id=keyring.tenant_id(tenant),
        scope_id=identity,
        epoch=keyring.writing_epoch(tenant, identity),
    )


def create_in_process(place: Place, tenants: list[str], queue: Any, barrier: Any) -> None:
    keyring = open_keyring(place, Clock())
    barrier.wait()
    keys = [keyring.writing_keys(owner(keyring, tenant)).seal_key.reveal() for tenant in tenants]
    queue.put(keys)
    keyring.database.close()
