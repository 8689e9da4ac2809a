"""The port to the SQL database under a keyring, and the tables in it.

One row of `tenants` for each tenant that was ever seen: with a wrapped key while it lives, without
one afterwards, and then the row is the tombstone. No table holds a name of a tenant, a user or a
conversation; ids are keyed pseudonyms.

Source: docs/spec/keyring-v1.md, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

Value = None | int | bytes | str

SCHEMA_VERSION = 1

# {blob} and {serial} are what a dialect calls bytes and a counting key.
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value {blob} NOT NULL)",
    """CREATE TABLE IF NOT EXISTS tenants (
        tenant_id {blob} PRIMARY KEY,
        wrapped {blob},
        generation BIGINT NOT NULL,
        epoch BIGINT NOT NULL,
        oldest_epoch BIGINT NOT NULL,
        rotated_unix_s BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS scope_keys (
        scope_id {blob} NOT NULL,
        epoch BIGINT NOT NULL,
        tenant_id {blob} NOT NULL,
        wrapped {blob} NOT NULL,
        expires_unix_s BIGINT NOT NULL,
        PRIMARY KEY (tenant_id, scope_id, epoch))""",
    """CREATE TABLE IF NOT EXISTS tombstones (
        scope_id {blob} NOT NULL,
        tenant_id {blob} NOT NULL,
        epoch BIGINT NOT NULL,
        PRIMARY KEY (tenant_id, scope_id))""",
    """CREATE TABLE IF NOT EXISTS purges (
        purge_id {serial},
        tenant_bucket {blob} NOT NULL,
        scope_bucket {blob},
        sweep_again_unix_s BIGINT NOT NULL)""",
)


class Transaction(Protocol):
    """A transaction in progress. Statements use `:name` for parameters."""

    def execute(self, sql: str, **values: Value) -> Sequence[Sequence[Value]]:
        """Run one statement and return its rows; none for statements without rows."""

    def lock(self, subject: bytes) -> None:
        """Wait until no other transaction holds the same subject, then hold it to the end."""


class Database(Protocol):
    """A database. May be used from several threads; other processes may use it, too."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a transaction; commit when the block ends, roll back when it raises.

        What was committed is durable.

        Raises:
            KeyringUnavailableError: The database does not answer, or not in time.
        """

    def scrub(self) -> None:
        """Overwrite what deleted rows left behind, as far as this database can."""

    def close(self) -> None:
        """Close connections."""
