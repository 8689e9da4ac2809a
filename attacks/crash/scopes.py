"""Keyrings and scopes of the workloads, the same in parent and children."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from kvward.errors import KeyUnavailableError
from kvward.scope import RootKey, Scope
from kvward.scope.derive import derive_scope_id
from kvward.scope.keyring import KeyLifetimes, Keyring, LocalRoot, SqliteDatabase
from kvward.scope.owner import ScopeOwner
from kvward.terms import SharingLevel

DEPLOYMENT = "crash"
TENANTS = ("first", "second", "third")
CONVERSATIONS = (b"one", b"two", b"three")
ROOTS = tuple(LocalRoot(RootKey(bytes([number]) * 32)) for number in (1, 2))


def open_with_root(
    path: Path,
    root: LocalRoot,
    lifetimes: KeyLifetimes,
    *,
    database_type: type[SqliteDatabase] = SqliteDatabase,
) -> Keyring:
    """Open a keyring; its database is closed again when it refuses the root."""
    database = database_type(path)
    try:
        return Keyring(
            database, root, deployment=DEPLOYMENT, lifetimes=lifetimes, now_unix_s=time.time
        )
    except BaseException:
        database.close()
        raise


def open_with_any_root(
    path: Path,
    lifetimes: KeyLifetimes,
    *,
    roots: Sequence[LocalRoot] = ROOTS,
    database_type: type[SqliteDatabase] = SqliteDatabase,
) -> Keyring:
    """Open a keyring with the root that it was last wrapped under.

    Raises:
        KeyUnavailableError: None of them fits.
    """
    for root in roots:
        try:
            return open_with_root(path, root, lifetimes, database_type=database_type)
        except KeyUnavailableError:
            continue
    raise KeyUnavailableError("No root opens the keyring.")


def find_scope_id(keyring: Keyring, tenant: str, conversation: bytes) -> bytes:
    """Return the id of a conversation; it makes the tenant's key if there is none."""
    scope = Scope(
        deployment=DEPLOYMENT,
        tenant=tenant,
        level=SharingLevel.CONVERSATION,
        subject=conversation,
        epoch=0,
    )
    return derive_scope_id(keyring.tenant_key(tenant), scope)


def find_owner(keyring: Keyring, tenant: str, conversation: bytes) -> ScopeOwner:
    """Return a conversation in the epoch that it is written under now."""
    scope_id = find_scope_id(keyring, tenant, conversation)
    return ScopeOwner(
        tenant_id=keyring.tenant_id(tenant),
        scope_id=scope_id,
        epoch=keyring.writing_epoch(tenant, scope_id),
    )
