"""What an operator does to a keyring: rotate, erase, collect, change the root, look at it.

Source: docs/spec/keyring-v1.md, sections 4 to 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvward.errors import KeyUnavailableError
from kvward.scope.derive import derive_scope_bucket
from kvward.scope.keyring.database import Transaction, Value
from kvward.scope.keyring.keyring import Keyring, to_bytes, to_integer
from kvward.scope.keyring.receipt import FORMAT, ErasureReceipt
from kvward.scope.keyring.root import Root

_OWN_SECRETS = ("deployment-key", "receipt-seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """What a keyring knows of a tenant, by pseudonym.

    Attributes:
        tenant_id: 24 bytes.
        erased: Whether its key is destroyed.
        epoch: Under which new state is written.
        oldest_epoch: Oldest one that is still read.
        num_keys: Wrapped scope keys.
        num_draining: Those of epochs before the current one: when none is left, the rotation is
            complete.
    """

    tenant_id: bytes
    erased: bool
    epoch: int
    oldest_epoch: int
    num_keys: int
    num_draining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPurge:
    """What every store has still to forget.

    Attributes:
        tenant_bucket: 16 bytes.
        scope_bucket: 16 bytes; None for the whole tenant.
        sweep_again_unix_s: A writer that has not heard of the erasure may store until then.
    """

    purge_id: int
    tenant_bucket: bytes
    scope_bucket: bytes | None
    sweep_again_unix_s: int


def rotate(keyring: Keyring, tenant: str, *, retire_old: bool) -> int:
    """Begin a new epoch of a tenant: write new, read old until it has drained.

    Args:
        retire_old: Stop reading the old ones at once, and destroy their keys.
    Returns:
        The new epoch, above every earlier one of the tenant and of its scopes.
    Raises:
        KeyUnavailableError: The tenant has no key.
    """
    tenant_id = keyring.tenant_id(tenant)
    with keyring.database.transaction() as transaction:
        transaction.lock(tenant_id)
        if keyring.find_tenant(transaction, tenant_id) is None:
            raise _unknown(tenant)
        epoch = _last_epoch(transaction, tenant_id) + 1
        transaction.execute(
            "UPDATE tenants SET epoch = :epoch, rotated_unix_s = :now WHERE tenant_id = :tenant_id",
            epoch=epoch,
            now=int(keyring.now_unix_s()),
            tenant_id=tenant_id,
        )
        if retire_old:
            _retire(transaction, tenant_id, epoch)
    if retire_old:
        keyring.database.scrub()
    return epoch


def erase_tenant(keyring: Keyring, tenant: str) -> ErasureReceipt:
    """Destroy a tenant's key and all keys under it.

    May be called again, as after an erasure that was cut short: it is completed, and the receipt
    says that no further key was destroyed.

    Returns:
        The receipt. The stores' copies are purged by `pending_purges`; they open under no key.
    Raises:
        KeyUnavailableError: The keyring never had a key of this tenant.
    """
    tenant_id = keyring.tenant_id(tenant)
    with keyring.database.transaction() as transaction:
        transaction.lock(tenant_id)
        last_epoch, destroyed = _destroy_tenant(transaction, keyring, tenant, tenant_id)
    keyring.database.scrub()
    keyring.forget_unwrapped()
    return _receipt(keyring, tenant_id, b"", last_epoch, destroyed)


def _destroy_tenant(
    transaction: Transaction, keyring: Keyring, tenant: str, tenant_id: bytes
) -> tuple[int, int]:
    """Return the last epoch that the tenant can have used, and how many keys were destroyed."""
    row = keyring.find_tenant(transaction, tenant_id)
    if row is None:
        tombstones = transaction.execute(
            "SELECT epoch FROM tenants WHERE tenant_id = :tenant_id", tenant_id=tenant_id
        )
        if not tombstones:
            raise _unknown(tenant)
        return to_integer(tombstones[0][0]) - 1, 0
    _plan_purge(transaction, keyring, keyring.tenant_bucket(tenant_id), None)
    last_epoch = _last_epoch(transaction, tenant_id)
    destroyed = _count(transaction, "scope_keys", tenant_id) + 1
    for table in ("scope_keys", "tombstones"):
        transaction.execute(
            f"DELETE FROM {table} WHERE tenant_id = :tenant_id",  # noqa: S608 - our tables
            tenant_id=tenant_id,
        )
    # The row stays as the tombstone: a new key of this tenant begins above it.
    transaction.execute(
        "UPDATE tenants SET wrapped = NULL, epoch = :epoch, oldest_epoch = :epoch "
        "WHERE tenant_id = :tenant_id",
        epoch=last_epoch + 1,
        tenant_id=tenant_id,
    )
    return last_epoch, destroyed


def erase_scope(keyring: Keyring, tenant: str, scope_id: bytes) -> ErasureReceipt:
    """Destroy the keys of one conversation or user; a second erasure is one again.

    Args:
        scope_id: Pseudonym of the scope, 24 bytes; the gateway returned it with every answer.
    Raises:
        KeyUnavailableError: The tenant has no key.
    """
    tenant_id = keyring.tenant_id(tenant)
    with keyring.database.transaction() as transaction:
        transaction.lock(tenant_id)
        row = keyring.find_tenant(transaction, tenant_id)
        if row is None:
            raise _unknown(tenant)
        scope_bucket = derive_scope_bucket(row.key, scope_id)
        _plan_purge(transaction, keyring, keyring.tenant_bucket(tenant_id), scope_bucket)
        here: dict[str, Value] = {"scope_id": scope_id, "tenant_id": tenant_id}
        rows = transaction.execute(
            "SELECT epoch FROM scope_keys WHERE scope_id = :scope_id AND tenant_id = :tenant_id "
            # What an engine holds under the epoch after the last erasure, stored or not, ends, too.
            "UNION SELECT epoch + 1 FROM tombstones "
            "WHERE scope_id = :scope_id AND tenant_id = :tenant_id",
            **here,
        )
        last_epoch = max([row.epoch, *(to_integer(found[0]) for found in rows)])
        destroyed = transaction.execute(
            "SELECT COUNT(*) FROM scope_keys WHERE scope_id = :scope_id AND tenant_id = :tenant_id",
            **here,
        )
        transaction.execute(
            "DELETE FROM scope_keys WHERE scope_id = :scope_id AND tenant_id = :tenant_id", **here
        )
        transaction.execute(
            "INSERT INTO tombstones (scope_id, tenant_id, epoch) "
            "VALUES (:scope_id, :tenant_id, :epoch) "
            "ON CONFLICT (tenant_id, scope_id) DO UPDATE SET epoch = :epoch",
            epoch=last_epoch,
            **here,
        )
    keyring.database.scrub()
    return _receipt(keyring, tenant_id, scope_id, last_epoch, to_integer(destroyed[0][0]))


def collect(keyring: Keyring) -> int:
    """Destroy scope keys that nothing stored can need any more, and end drained rotations.

    Returns:
        How many keys were destroyed. Call it from time to time, in one replica or in all.
    """
    now = int(keyring.now_unix_s())
    with keyring.database.transaction() as transaction:
        expired = transaction.execute(
            "SELECT COUNT(*) FROM scope_keys WHERE expires_unix_s <= :now", now=now
        )
        transaction.execute("DELETE FROM scope_keys WHERE expires_unix_s <= :now", now=now)
        # A replica that has not heard of a rotation may still write for `cache_s`.
        transaction.execute(
            "UPDATE tenants SET oldest_epoch = epoch WHERE oldest_epoch < epoch "
            "AND rotated_unix_s + :cache_s < :now AND NOT EXISTS (SELECT 1 FROM scope_keys "
            "WHERE scope_keys.tenant_id = tenants.tenant_id AND scope_keys.epoch < tenants.epoch)",
            now=now,
            cache_s=keyring.lifetimes.cache_s,
        )
    destroyed = to_integer(expired[0][0])
    # In any case: an erasure may have been cut short before it came to this.
    keyring.database.scrub()
    return destroyed


def reroot(keyring: Keyring, new_root: Root) -> int:
    """Wrap everything anew under another root key. Use a new `Keyring` afterwards.

    When the old root key has been destroyed, no backup of the keyring opens any more.

    Returns:
        How many keys were wrapped anew.
    """
    with keyring.database.transaction() as transaction:
        transaction.lock(b"deployment")
        for name in _OWN_SECRETS:
            _rewrap_own(transaction, keyring, new_root, name)
        tenants = transaction.execute("SELECT tenant_id FROM tenants WHERE wrapped IS NOT NULL")
        tenant_ids = [to_bytes(tenant_id) for (tenant_id,) in tenants]
        for tenant_id in tenant_ids:
            transaction.lock(tenant_id)
            _rewrap_tenant(transaction, keyring, new_root, tenant_id)
        transaction.execute(
            "UPDATE meta SET value = :value WHERE name = 'root-id'", value=new_root.root_id
        )
    keyring.database.scrub()
    return len(tenant_ids) + len(_OWN_SECRETS)


def iter_status(keyring: Keyring) -> list[TenantStatus]:
    """Return what the keyring knows of every tenant."""
    with keyring.database.transaction() as transaction:
        rows = transaction.execute(
            "SELECT tenant_id, wrapped IS NULL, epoch, oldest_epoch, "
            "(SELECT COUNT(*) FROM scope_keys k WHERE k.tenant_id = t.tenant_id), "
            "(SELECT COUNT(*) FROM scope_keys k WHERE k.tenant_id = t.tenant_id "
            "AND k.epoch < t.epoch) FROM tenants t ORDER BY tenant_id"
        )
    return [
        TenantStatus(
            tenant_id=to_bytes(tenant_id),
            erased=bool(erased),
            epoch=to_integer(epoch),
            oldest_epoch=to_integer(oldest_epoch),
            num_keys=to_integer(num_keys),
            num_draining=to_integer(num_draining),
        )
        for tenant_id, erased, epoch, oldest_epoch, num_keys, num_draining in rows
    ]


def pending_purges(keyring: Keyring) -> list[PendingPurge]:
    """Return what stores have still to forget. They stay pending until `finish_purge`."""
    with keyring.database.transaction() as transaction:
        rows = transaction.execute(
            "SELECT purge_id, tenant_bucket, scope_bucket, sweep_again_unix_s FROM purges "
            "ORDER BY purge_id"
        )
    return [
        PendingPurge(
            purge_id=to_integer(purge_id),
            tenant_bucket=to_bytes(tenant_bucket),
            scope_bucket=None if scope_bucket is None else to_bytes(scope_bucket),
            sweep_again_unix_s=to_integer(sweep_again),
        )
        for purge_id, tenant_bucket, scope_bucket, sweep_again in rows
    ]


def finish_purge(keyring: Keyring, purge: PendingPurge) -> None:
    """Say that every store has forgotten it, after `sweep_again_unix_s`."""
    with keyring.database.transaction() as transaction:
        transaction.execute(
            "DELETE FROM purges WHERE purge_id = :purge_id", purge_id=purge.purge_id
        )


def _rewrap_own(transaction: Transaction, keyring: Keyring, new_root: Root, name: str) -> None:
    rows = transaction.execute("SELECT value FROM meta WHERE name = :name", name=name)
    secret = keyring.root.unwrap(to_bytes(rows[0][0]), *keyring.own_context(name))
    transaction.execute(
        "UPDATE meta SET value = :value WHERE name = :name",
        name=name,
        value=new_root.wrap(secret, *keyring.own_context(name, root_id=new_root.root_id)),
    )


def _rewrap_tenant(
    transaction: Transaction, keyring: Keyring, new_root: Root, tenant_id: bytes
) -> None:
    rows = transaction.execute(
        "SELECT generation, wrapped FROM tenants "
        "WHERE tenant_id = :tenant_id AND wrapped IS NOT NULL",
        tenant_id=tenant_id,
    )
    for generation_value, wrapped in rows:
        generation = to_integer(generation_value)
        key = keyring.root.unwrap(to_bytes(wrapped), *keyring.tenant_context(tenant_id, generation))
        context = keyring.tenant_context(tenant_id, generation, root_id=new_root.root_id)
        transaction.execute(
            "UPDATE tenants SET wrapped = :wrapped WHERE tenant_id = :tenant_id",
            tenant_id=tenant_id,
            wrapped=new_root.wrap(key, *context),
        )


def _plan_purge(
    transaction: Transaction, keyring: Keyring, tenant_bucket: bytes, scope_bucket: bytes | None
) -> None:
    transaction.execute(
        "INSERT INTO purges (tenant_bucket, scope_bucket, sweep_again_unix_s) "
        "VALUES (:tenant_bucket, :scope_bucket, :sweep_again)",
        tenant_bucket=tenant_bucket,
        scope_bucket=scope_bucket,
        sweep_again=int(keyring.now_unix_s()) + keyring.lifetimes.erasure_bound_s + 1,
    )


def _retire(transaction: Transaction, tenant_id: bytes, epoch: int) -> None:
    transaction.execute(
        "UPDATE tenants SET oldest_epoch = :epoch WHERE tenant_id = :tenant_id",
        epoch=epoch,
        tenant_id=tenant_id,
    )
    transaction.execute(
        "DELETE FROM scope_keys WHERE tenant_id = :tenant_id AND epoch < :epoch",
        epoch=epoch,
        tenant_id=tenant_id,
    )


def _last_epoch(transaction: Transaction, tenant_id: bytes) -> int:
    """Return the highest epoch that any state of a tenant can have been written under."""
    rows = transaction.execute(
        "SELECT epoch FROM tenants WHERE tenant_id = :tenant_id "
        "UNION SELECT MAX(epoch) FROM scope_keys WHERE tenant_id = :tenant_id "
        # A scope that was erased writes one above its tombstone.
        "UNION SELECT MAX(epoch) + 1 FROM tombstones WHERE tenant_id = :tenant_id",
        tenant_id=tenant_id,
    )
    return max(to_integer(epoch) for (epoch,) in rows if epoch is not None)


def _count(transaction: Transaction, table: str, tenant_id: bytes) -> int:
    rows = transaction.execute(
        f"SELECT COUNT(*) FROM {table} WHERE tenant_id = :tenant_id",  # noqa: S608 - our tables
        tenant_id=tenant_id,
    )
    return to_integer(rows[0][0])


def _receipt(
    keyring: Keyring, tenant_id: bytes, scope_id: bytes, last_epoch: int, destroyed: int
) -> ErasureReceipt:
    now = int(keyring.now_unix_s())
    return ErasureReceipt(
        format=FORMAT,
        deployment=keyring.deployment,
        tenant_id=tenant_id.hex(),
        scope_id=scope_id.hex(),
        erased_unix_s=now,
        effective_unix_s=now + keyring.lifetimes.erasure_bound_s + 1,
        last_epoch=last_epoch,
        keys_destroyed=destroyed,
        root_id=keyring.root.root_id.hex(),
    )


def _unknown(tenant: str) -> KeyUnavailableError:
    return KeyUnavailableError(
        f"The tenant {tenant!r} has no key in this keyring.",
        hint="It never asked for anything, was erased already, or is spelled another way.",
    )
