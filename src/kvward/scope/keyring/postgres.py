"""A keyring database in PostgreSQL, for many replicas. Needs the extra `postgres`."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from kvward.errors import KeyringUnavailableError
from kvward.scope.keyring.database import SCHEMA, Transaction, Value

_PARAMETER = re.compile(r":([a-z_]+)\b")
_HINT = "Stored state is not read meanwhile; requests are computed anew."
_SCHEMA_LOCK = 0x6B767761  # any number that is ours


class _Statements:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: str, **values: Value) -> Sequence[Sequence[Value]]:
        cursor = self._connection.execute(
            _PARAMETER.sub(r"%(\1)s", sql),
            values,
        )
        if cursor.description is None:
            return []
        return cursor.fetchall()

    def lock(self, subject: bytes) -> None:
        number = int.from_bytes(subject[:8], "big", signed=True)
        self._connection.execute("SELECT pg_advisory_xact_lock(%s)", [number])


class PostgresDatabase:
    """Implements `Database`.

    Args:
        dsn: Connection string. May hold a password, so it is never shown. [secret]
        timeout_s: Longest wait for a connection, a lock or a statement, each.
        retry_after_s: How long it is left alone after it did not answer: meanwhile everybody is
            told so at once, and nobody waits in line for it.
    Raises:
        KeyringUnavailableError: Nothing answers at the address.
    Security:
        A deleted row stays in the table's file until PostgreSQL rewrites the page, and in its
        write-ahead log until that is recycled: `scrub` vacuums, and no more. Against somebody who
        reads the database's files, erasure is complete when the root key has been changed.
    """

    def __init__(self, dsn: str, *, timeout_s: float, retry_after_s: float = 1.0) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        self._retry_after_s = retry_after_s
        self._out_until_s = 0.0
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        with self.transaction() as transaction:
            transaction.execute("SELECT pg_advisory_xact_lock(:number)", number=_SCHEMA_LOCK)
            for statement in SCHEMA:
                transaction.execute(statement.format(blob="BYTEA", serial="BIGSERIAL PRIMARY KEY"))

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction, on a new connection if the last one was lost."""
        self._check_not_out()
        with self._lock:
            # Again: it may have gone while others were waited for.
            self._check_not_out()
            try:
                connection = self._connect()
                with connection.transaction():
                    yield _Statements(connection)
            except psycopg.Error as exc:
                self._drop()
                self._out_until_s = time.monotonic() + self._retry_after_s
                raise KeyringUnavailableError(
                    f"The keyring's database does not answer: {type(exc).__name__}.",
                    hint=_HINT,
                ) from exc

    def scrub(self) -> None:
        """Let the database reuse the room of deleted rows."""
        with self._lock:
            try:
                for table in ("scope_keys", "tenants"):
                    self._connect().execute(f"VACUUM {table}")
            except psycopg.Error as exc:
                self._drop()
                raise KeyringUnavailableError(
                    f"The keyring's database cannot be vacuumed: {type(exc).__name__}."
                ) from exc

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _check_not_out(self) -> None:
        if time.monotonic() < self._out_until_s:
            raise KeyringUnavailableError(
                "The keyring's database did not answer a moment ago.", hint=_HINT
            )

    def _connect(self) -> psycopg.Connection[Any]:
        connection = self._connection
        if connection is None or connection.closed:
            milliseconds = int(self._timeout_s * 1000)
            connection = psycopg.connect(
                self._dsn,
                autocommit=True,
                connect_timeout=max(2, int(self._timeout_s)),
                options=f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds}",
            )
            self._connection = connection
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
