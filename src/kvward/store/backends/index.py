"""What an embedded backend keeps, and whose entries go when room is needed.

One SQLite table, in memory or in a file that several processes share. It accounts for bytes and
knows no content; losing it loses nothing but the account (`FilesystemBackend.reconcile`).
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from kvward.errors import BackendDataError, BackendUnavailableError
from kvward.scope.keyring.sqlite import turn_on_journal
from kvward.store.backend import Bucket, BucketUsage, EntryName, Room

_WAIT_S = 10.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    put INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant BLOB NOT NULL,
    scope BLOB NOT NULL,
    name BLOB NOT NULL,
    num_bytes INTEGER NOT NULL,
    expires_unix_s INTEGER NOT NULL,
    protected INTEGER NOT NULL,
    UNIQUE (tenant, scope, name));
CREATE INDEX IF NOT EXISTS entries_of_tenant ON entries (tenant, protected, put);
CREATE INDEX IF NOT EXISTS entries_by_expiry ON entries (expires_unix_s);
CREATE INDEX IF NOT EXISTS expiry_of_tenant ON entries (tenant, expires_unix_s);
CREATE TABLE IF NOT EXISTS tenants (
    tenant BLOB PRIMARY KEY,
    has_share INTEGER NOT NULL,
    num_entries INTEGER NOT NULL,
    protected_bytes INTEGER NOT NULL,
    borrowed_bytes INTEGER NOT NULL,
    evicted_entries INTEGER NOT NULL);
"""


class EntryIndex:
    """Accounts for the entries of one backend. May be used from several threads.

    Args:
        location: Path of the index file, or ":memory:".
        room: Of the backend.
    """

    def __init__(self, location: str, room: Room) -> None:
        self._room = room
        self._lock = threading.RLock()
        self._depth = 0
        with _translated():
            self._db = sqlite3.connect(
                location, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            weakref.finalize(self, self._db.close)
            turn_on_journal(self._db)
            # What a crash may lose here is made up for by `reconcile`.
            self._db.execute("PRAGMA synchronous = OFF").fetchall()
            self._db.executescript(_SCHEMA)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Hold the index, against other processes too, until the block ends; all or nothing."""
        with self._lock, _translated():
            self._depth += 1
            try:
                if self._depth == 1:
                    self._db.execute("BEGIN IMMEDIATE")
                yield
            except BaseException:
                if self._depth == 1 and self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            else:
                if self._depth == 1:
                    self._db.execute("COMMIT")
            finally:
                self._depth -= 1

    def admit(
        self, name: EntryName, num_bytes: int, *, expires_unix_s: int, now_unix_s: float
    ) -> tuple[bool, list[EntryName]]:
        """Make room for an entry and account for it, in place of one of the same name.

        What is past its time takes no room: it goes first, the tenant's own in any case.

        Returns:
            Whether it may be kept, and what was dropped for it, whose bytes the caller deletes. An
            entry of the same name that is replaced is not among them; one that is not replaced,
            because the new one may not be kept, is.
        """
        dropped: list[EntryName] = []
        with self.batch():
            self._remove(name)
            if num_bytes > self._room.capacity_bytes:
                return False, [name]
            dropped += self._drop_expired_of(name.tenant, now_unix_s)
            self._meet(name.tenant)
            while True:
                has_share, protected_bytes = self._db.execute(
                    "SELECT has_share, protected_bytes FROM tenants WHERE tenant = ?",
                    (name.tenant,),
                ).fetchone()
                protected = has_share and protected_bytes + num_bytes <= self._room.share_bytes
                if num_bytes <= self._free_bytes():
                    break
                if expired := self.expired(now_unix_s, limit=1):
                    self._remove(expired[0], keep_tenant=name.tenant)
                    dropped += expired
                    continue
                if not self._can_ever_fit(name.tenant, num_bytes, has_share=bool(has_share)):
                    self._leave_if_empty(name.tenant)
                    return False, [*dropped, name]
                # (1) Within its share a tenant takes back what others borrowed; beyond it, it
                #     takes from itself, or from nobody.
                victim = self._largest_borrower() if protected else name.tenant
                oldest = self._oldest(victim, borrowed_only=protected)
                if oldest is None:
                    self._leave_if_empty(name.tenant)
                    return False, [*dropped, name]
                self._remove(oldest, evicted=True, keep_tenant=name.tenant)
                dropped.append(oldest)
            self._insert(name, num_bytes, expires_unix_s, protected=bool(protected))
        return True, dropped

    def remove(self, name: EntryName) -> bool:
        """Take an entry off the account, and tell whether it was there."""
        with self.batch():
            return self._remove(name)

    def names(self, bucket: Bucket) -> list[EntryName]:
        """Return what a bucket holds."""
        with self.batch():
            if bucket.scope is None:
                rows = self._db.execute(
                    "SELECT tenant, scope, name FROM entries WHERE tenant = ?", (bucket.tenant,)
                )
            else:
                rows = self._db.execute(
                    "SELECT tenant, scope, name FROM entries WHERE tenant = ? AND scope = ?",
                    (bucket.tenant, bucket.scope),
                )
            return [_to_name(row) for row in rows]

    def expired(self, now_unix_s: float, *, limit: int) -> list[EntryName]:
        """Return entries past their time, the longest first."""
        with self.batch():
            rows = self._db.execute(
                "SELECT tenant, scope, name FROM entries WHERE expires_unix_s <= ? "
                "ORDER BY expires_unix_s LIMIT ?",
                (int(now_unix_s), limit),
            )
            return [_to_name(row) for row in rows]

    def sizes(self) -> dict[EntryName, int]:
        """Return everything on the account, with its bytes."""
        with self.batch():
            rows = self._db.execute("SELECT tenant, scope, name, num_bytes FROM entries").fetchall()
        return {_to_name((tenant, scope, name)): size for tenant, scope, name, size in rows}

    def usage(self) -> dict[bytes, BucketUsage]:
        """Return what every tenant with entries takes."""
        with self.batch():
            rows = self._db.execute(
                "SELECT tenant, num_entries, protected_bytes + borrowed_bytes, evicted_entries "
                "FROM tenants WHERE num_entries > 0"
            ).fetchall()
        return {
            tenant: BucketUsage(
                num_entries=num_entries, num_bytes=num_bytes, evicted_entries=evicted
            )
            for tenant, num_entries, num_bytes, evicted in rows
        }

    def close(self) -> None:
        """Close the index."""
        with self._lock:
            self._db.close()

    def _can_ever_fit(self, tenant: bytes, num_bytes: int, *, has_share: bool) -> bool:
        """Tell whether an entry fits after everything is gone that the tenant may take."""
        (own,) = self._db.execute(
            "SELECT protected_bytes + borrowed_bytes FROM tenants WHERE tenant = ?", (tenant,)
        ).fetchone()
        within_share = has_share and num_bytes <= self._room.share_bytes
        return within_share or num_bytes <= self._free_bytes() + int(own)

    def _drop_expired_of(self, tenant: bytes, now_unix_s: float) -> list[EntryName]:
        rows = self._db.execute(
            "SELECT tenant, scope, name FROM entries WHERE tenant = ? AND expires_unix_s <= ?",
            (tenant, int(now_unix_s)),
        ).fetchall()
        names = [_to_name(row) for row in rows]
        for name in names:
            self._remove(name)
        return names

    def _free_bytes(self) -> int:
        (used,) = self._db.execute(
            "SELECT COALESCE(SUM(protected_bytes + borrowed_bytes), 0) FROM tenants"
        ).fetchone()
        return self._room.capacity_bytes - int(used)

    def _meet(self, tenant: bytes) -> None:
        """Give a tenant that has nothing here a share, if there is room for one more."""
        (shares,) = self._db.execute(
            "SELECT COUNT(*) FROM tenants WHERE has_share AND tenant != ?", (tenant,)
        ).fetchone()
        has_share = (int(shares) + 1) * self._room.share_bytes <= self._room.capacity_bytes
        self._db.execute(
            "INSERT INTO tenants VALUES (?, ?, 0, 0, 0, 0) "
            "ON CONFLICT (tenant) DO UPDATE SET has_share = ? WHERE num_entries = 0",
            (tenant, has_share, has_share),
        )

    def _leave_if_empty(self, tenant: bytes) -> None:
        self._db.execute(
            "UPDATE tenants SET has_share = 0 WHERE tenant = ? AND num_entries = 0", (tenant,)
        )

    def _largest_borrower(self) -> bytes:
        (tenant,) = self._db.execute(
            "SELECT tenant FROM tenants ORDER BY borrowed_bytes DESC, tenant LIMIT 1"
        ).fetchone()
        return bytes(tenant)

    def _oldest(self, tenant: bytes, *, borrowed_only: bool) -> EntryName | None:
        row = self._db.execute(
            "SELECT tenant, scope, name FROM entries WHERE tenant = ? AND protected <= ? "
            "ORDER BY put LIMIT 1",
            (tenant, 0 if borrowed_only else 1),
        ).fetchone()
        return None if row is None else _to_name(row)

    def _insert(
        self, name: EntryName, num_bytes: int, expires_unix_s: int, *, protected: bool
    ) -> None:
        self._db.execute(
            "INSERT INTO entries (tenant, scope, name, num_bytes, expires_unix_s, protected) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (name.tenant, name.scope, name.name, num_bytes, expires_unix_s, protected),
        )
        self._account(name.tenant, num_bytes, 1, protected=protected)

    def _remove(
        self, name: EntryName, *, evicted: bool = False, keep_tenant: bytes | None = None
    ) -> bool:
        row = self._db.execute(
            "DELETE FROM entries WHERE tenant = ? AND scope = ? AND name = ? "
            "RETURNING num_bytes, protected",
            (name.tenant, name.scope, name.name),
        ).fetchone()
        if row is None:
            return False
        num_bytes, protected = row
        self._account(name.tenant, -num_bytes, -1, protected=bool(protected), evicted=evicted)
        if name.tenant != keep_tenant:
            self._leave_if_empty(name.tenant)
        return True

    def _account(
        self, tenant: bytes, num_bytes: int, entries: int, *, protected: bool, evicted: bool = False
    ) -> None:
        self._db.execute(
            "UPDATE tenants SET num_entries = num_entries + ?, "
            "protected_bytes = protected_bytes + ?, borrowed_bytes = borrowed_bytes + ?, "
            "evicted_entries = evicted_entries + ? WHERE tenant = ?",
            (entries, num_bytes * protected, num_bytes * (not protected), evicted, tenant),
        )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as exc:
        raise BackendUnavailableError(f"The index of the store does not answer: {exc}.") from exc
    except sqlite3.Error as exc:
        raise BackendDataError(
            f"The index of the store cannot be used: {exc}.",
            hint="Stop its users and delete the file index.db; it is made anew from the entries.",
        ) from exc


def _to_name(row: tuple[bytes, bytes, bytes]) -> EntryName:
    tenant, scope, name = row
    return EntryName(tenant=bytes(tenant), scope=bytes(scope), name=bytes(name))
