"""The keyring: root key over tenant keys over scope keys, each wrapped by its parent.

Scope ids, tokens and names derive from the tenant's key and are never written. The random seal key
of a scope is made when its first block is stored. What was erased has a tombstone, and keys are
made above it only.

Source: docs/spec/keyring-v1.md.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cachetools import TTLCache

from kvward.canonical import encode
from kvward.errors import EpochRetiredError, KeyUnavailableError, UsageError
from kvward.scope.derive import (
    derive_name_key,
    derive_scope_bucket,
    derive_tenant_bucket,
    derive_tenant_id,
    derive_token_key,
)
from kvward.scope.keyring.database import SCHEMA_VERSION, Database, Transaction, Value
from kvward.scope.keyring.keys import ScopeKeys
from kvward.scope.keyring.root import Root
from kvward.scope.keyring.wrap import unwrap_key, wrap_key
from kvward.scope.keys import KEY_BYTES, DeploymentKey, SealKey, TenantKey, TokenKey
from kvward.scope.owner import ScopeOwner

_MAX_UNWRAPPED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLifetimes:
    """How long things last. The bound of an erasure follows from it.

    Attributes:
        cache_s: A replica may go on using a key or an epoch for this long without asking, > 0.
        request_s: Longest request: state read at its start is in use until its end.
        max_age_s: Age at which stored state is no longer served.
    """

    cache_s: int
    request_s: int
    max_age_s: int

    def __post_init__(self) -> None:
        if min(self.cache_s, self.request_s, self.max_age_s) < 1:
            raise UsageError("Every lifetime of a keyring is at least one second.")

    @property
    def erasure_bound_s(self) -> int:
        """Return after how long nothing erased is served or opened anywhere.

        A request may begin as long as its replica remembers the key, and what it read at its
        beginning is in use until its end.
        """
        return self.cache_s + self.request_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A tenant that lives. `key` is secret."""

    tenant_id: bytes
    key: TenantKey
    epoch: int
    oldest_epoch: int


class Keyring:
    """Implements `TenantKeys`, `EpochSource` and `KeyClient`, asking the database every time.

    Args:
        database: Shared by all replicas of a deployment.
        root: Wraps the deployment's and the tenants' keys.
        deployment: Name of the installation.
        lifetimes: The same in every replica.
        now_unix_s: Clock.
    Raises:
        KeyUnavailableError: The keyring was made under another root key, for another deployment
            or by a newer version.
        KeyringUnavailableError: The database does not answer.
    """

    def __init__(
        self,
        database: Database,
        root: Root,
        *,
        deployment: str,
        lifetimes: KeyLifetimes,
        now_unix_s: Callable[[], float],
    ) -> None:
        self.database = database
        self.root = root
        self.deployment = deployment
        self.lifetimes = lifetimes
        self.now_unix_s = now_unix_s
        # So that the root, which may be a service, is asked once for each tenant. A key is found
        # here only by what a row of the database holds now.
        self._unwrapped: TTLCache[bytes, TenantKey] = TTLCache(_MAX_UNWRAPPED, lifetimes.cache_s)
        self._unwrapped_lock = threading.Lock()
        with database.transaction() as transaction:
            transaction.lock(b"deployment")
            self._check_root(transaction)
            self.deployment_key = DeploymentKey(self._own_secret(transaction, "deployment-key"))
            self.receipt_seed = self._own_secret(transaction, "receipt-seed")

    @property
    def token_key(self) -> TokenKey:
        """Return the key that authenticates scope tokens. [secret]"""
        return derive_token_key(self.deployment_key, deployment=self.deployment)

    def tenant_id(self, tenant: str) -> bytes:
        """Return the pseudonym of a tenant, 24 bytes."""
        return derive_tenant_id(self.deployment_key, deployment=self.deployment, tenant=tenant)

    def tenant_bucket(self, tenant_id: bytes) -> bytes:
        """Return the pseudonym under which stores group a tenant's entries, 16 bytes."""
        return derive_tenant_bucket(self.deployment_key, tenant_id=tenant_id)

    def tenant_key(self, tenant: str) -> TenantKey:
        """Return the key of a tenant, made at the first call, and anew after an erasure."""
        tenant_id = self.tenant_id(tenant)
        with self.database.transaction() as transaction:
            row = self.find_tenant(transaction, tenant_id)
            if row is None:
                # (1) While no other replica changes the root or makes this tenant's key.
                transaction.lock(b"deployment")
                transaction.lock(tenant_id)
                # (2) A replica that has not heard of a change of root makes nothing under the old.
                self._check_root(transaction)
                self._create_tenant(transaction, tenant_id)
                row = self.find_tenant(transaction, tenant_id)
        assert row is not None  # noqa: S101 - made in this transaction
        return row.key

    def writing_epoch(self, tenant: str, scope_id: bytes) -> int:
        """Return the epoch that new state of a scope belongs to."""
        tenant_id = self.tenant_id(tenant)
        with self.database.transaction() as transaction:
            rows = transaction.execute(
                "SELECT epoch FROM tenants WHERE tenant_id = :tenant_id", tenant_id=tenant_id
            )
            epoch = to_integer(rows[0][0]) if rows else 0
            return max(epoch, self._tombstone(transaction, tenant_id, scope_id) + 1)

    def reading_keys(self, owner: ScopeOwner) -> Sequence[ScopeKeys]:
        """Return the keys of every epoch that may still be read, newest first."""
        with self.database.transaction() as transaction:
            tenant = self.find_tenant(transaction, owner.tenant_id)
            if tenant is None:
                return []
            tombstone = self._tombstone(transaction, owner.tenant_id, owner.scope_id)
            floor = max(tenant.oldest_epoch, tombstone + 1)
            if owner.epoch < floor:
                return []
            rows = transaction.execute(
                "SELECT epoch, wrapped FROM scope_keys WHERE scope_id = :scope_id "
                "AND tenant_id = :tenant_id AND epoch >= :floor AND epoch <= :epoch "
                "AND expires_unix_s > :now ORDER BY epoch DESC",
                scope_id=owner.scope_id,
                tenant_id=owner.tenant_id,
                floor=floor,
                epoch=owner.epoch,
                now=int(self.now_unix_s()),
            )
        return [
            self._scope_keys(tenant, owner.scope_id, to_integer(epoch), wrapped)
            for epoch, wrapped in rows
        ]

    def writing_keys(self, owner: ScopeOwner) -> ScopeKeys:
        """Return the keys to write under, made at the first call for a scope."""
        lifetimes = self.lifetimes
        with self.database.transaction() as transaction:
            # (1) Erasure and rotation of this tenant wait, or have been.
            transaction.lock(owner.tenant_id)
            tenant = self.find_tenant(transaction, owner.tenant_id)
            if tenant is None:
                raise KeyUnavailableError("The tenant of this scope has no key.")
            # (2) Keys are made above the tombstone, in the newest epoch only.
            tombstone = self._tombstone(transaction, owner.tenant_id, owner.scope_id)
            epoch = max(tenant.epoch, tombstone + 1)
            if owner.epoch != epoch:
                raise EpochRetiredError("The epoch of this scope token has ended.")
            # (3) Whoever inserts first has made the key; everybody reads what is there.
            seal_key = os.urandom(KEY_BYTES)
            here: dict[str, Value] = {
                "tenant_id": owner.tenant_id,
                "scope_id": owner.scope_id,
                "epoch": epoch,
            }
            # Cached for `cache_s` from now on, it may seal until then, and what it seals lives on.
            expires = int(self.now_unix_s()) + lifetimes.cache_s + lifetimes.max_age_s + 1
            transaction.execute(
                "INSERT INTO scope_keys (scope_id, epoch, tenant_id, wrapped, expires_unix_s) "
                "VALUES (:scope_id, :epoch, :tenant_id, :wrapped, :expires) "
                "ON CONFLICT (tenant_id, scope_id, epoch) DO UPDATE SET expires_unix_s = :expires "
                "WHERE scope_keys.expires_unix_s < :expires",
                wrapped=wrap_key(
                    tenant.key, seal_key, *self._scope_context(tenant, owner.scope_id, epoch)
                ),
                expires=expires,
                **here,
            )
            rows = transaction.execute(
                "SELECT wrapped FROM scope_keys WHERE tenant_id = :tenant_id "
                "AND scope_id = :scope_id AND epoch = :epoch",
                **here,
            )
        return self._scope_keys(tenant, owner.scope_id, epoch, rows[0][0])

    def find_tenant(self, transaction: Transaction, tenant_id: bytes) -> TenantRow | None:
        """Return a tenant that lives, or None."""
        rows = transaction.execute(
            "SELECT wrapped, generation, epoch, oldest_epoch FROM tenants "
            "WHERE tenant_id = :tenant_id AND wrapped IS NOT NULL",
            tenant_id=tenant_id,
        )
        if not rows:
            return None
        wrapped, generation, epoch, oldest_epoch = rows[0]
        return TenantRow(
            tenant_id=tenant_id,
            key=self._unwrap_tenant(tenant_id, to_integer(generation), to_bytes(wrapped)),
            epoch=to_integer(epoch),
            oldest_epoch=to_integer(oldest_epoch),
        )

    def forget_unwrapped(self) -> None:
        """Drop tenant keys from memory."""
        with self._unwrapped_lock:
            self._unwrapped.clear()

    def tenant_context(
        self, tenant_id: bytes, generation: int, *, root_id: bytes | None = None
    ) -> tuple[str | bytes | int, ...]:
        """Return what the wrapping of a tenant key is bound to, under this root or another."""
        root_id = self.root.root_id if root_id is None else root_id
        return ("tenant-key", self.deployment, root_id, tenant_id, generation)

    def own_context(
        self, name: str, *, root_id: bytes | None = None
    ) -> tuple[str | bytes | int, ...]:
        """Return what the wrapping of a key of the deployment itself is bound to."""
        root_id = self.root.root_id if root_id is None else root_id
        return (name, self.deployment, root_id, b"", 0)

    def _unwrap_tenant(self, tenant_id: bytes, generation: int, wrapped: bytes) -> TenantKey:
        context = self.tenant_context(tenant_id, generation)
        # Under the whole context: the same bytes in another tenant's row are not found here.
        index = encode("kvward/unwrapped-key/v1", wrapped, *context)
        with self._unwrapped_lock:
            key = self._unwrapped.get(index)
        if key is None:
            key = TenantKey(self.root.unwrap(wrapped, *context))
            with self._unwrapped_lock:
                self._unwrapped[index] = key
        return key

    def _create_tenant(self, transaction: Transaction, tenant_id: bytes) -> None:
        """Make a tenant's key unless it has one; after an erasure, one generation up."""
        rows = transaction.execute(
            "SELECT generation, wrapped FROM tenants WHERE tenant_id = :tenant_id",
            tenant_id=tenant_id,
        )
        if rows and rows[0][1] is not None:
            return
        generation = to_integer(rows[0][0]) + 1 if rows else 0
        context = self.tenant_context(tenant_id, generation)
        transaction.execute(
            "INSERT INTO tenants "
            "(tenant_id, wrapped, generation, epoch, oldest_epoch, rotated_unix_s) "
            "VALUES (:tenant_id, :wrapped, :generation, 0, 0, :now) "
            "ON CONFLICT (tenant_id) DO UPDATE SET wrapped = :wrapped, generation = :generation, "
            "rotated_unix_s = :now",
            tenant_id=tenant_id,
            wrapped=self.root.wrap(os.urandom(KEY_BYTES), *context),
            generation=generation,
            now=int(self.now_unix_s()),
        )

    def _scope_keys(
        self, tenant: TenantRow, scope_id: bytes, epoch: int, wrapped: Value
    ) -> ScopeKeys:
        context = self._scope_context(tenant, scope_id, epoch)
        return ScopeKeys(
            epoch=epoch,
            tenant_bucket=self.tenant_bucket(tenant.tenant_id),
            scope_bucket=derive_scope_bucket(tenant.key, scope_id),
            seal_key=SealKey(unwrap_key(tenant.key, to_bytes(wrapped), *context)),
            name_key=derive_name_key(tenant.key, scope_id=scope_id, epoch=epoch),
        )

    def _scope_context(
        self, tenant: TenantRow, scope_id: bytes, epoch: int
    ) -> tuple[str | bytes | int, ...]:
        return ("scope-key", self.deployment, tenant.tenant_id, scope_id, epoch)

    def _tombstone(self, transaction: Transaction, tenant_id: bytes, scope_id: bytes) -> int:
        rows = transaction.execute(
            "SELECT epoch FROM tombstones WHERE tenant_id = :tenant_id AND scope_id = :scope_id",
            tenant_id=tenant_id,
            scope_id=scope_id,
        )
        return to_integer(rows[0][0]) if rows else -1

    def _check_root(self, transaction: Transaction) -> None:
        """Refuse a keyring of another root, deployment or version before anything is unwrapped."""
        for name, mine, hint in [
            ("version", str(SCHEMA_VERSION).encode(), "Use the version of kvward that made it."),
            ("deployment", self.deployment.encode(), "Name the deployment that it was made for."),
            ("root-id", self.root.root_id, "Give the root key that it was made with."),
        ]:
            found = self._insert_or_get(transaction, name, mine)
            if found != mine:
                raise KeyUnavailableError(
                    f"The keyring was made with another {name.replace('-id', ' key')}.", hint=hint
                )

    def _own_secret(self, transaction: Transaction, name: str) -> bytes:
        fresh = self.root.wrap(os.urandom(KEY_BYTES), *self.own_context(name))
        wrapped = self._insert_or_get(transaction, name, fresh)
        return self.root.unwrap(wrapped, *self.own_context(name))

    def _insert_or_get(self, transaction: Transaction, name: str, value: bytes) -> bytes:
        transaction.execute(
            "INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING",
            name=name,
            value=value,
        )
        rows = transaction.execute("SELECT value FROM meta WHERE name = :name", name=name)
        return to_bytes(rows[0][0])


def to_integer(value: Value) -> int:
    """Return an integer column. [untrusted]"""
    if not isinstance(value, int):
        raise KeyUnavailableError("A row of the keyring does not hold what it should.")
    return value


def to_bytes(value: Value) -> bytes:
    """Return a bytes column. [untrusted]"""
    if not isinstance(value, (bytes, memoryview)):
        raise KeyUnavailableError("A row of the keyring does not hold what it should.")
    return bytes(value)
