"""A keyring database in one local file, for one machine. Several processes may share it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvward.errors import KeyringUnavailableError, KeyUnavailableError
from kvward.scope.keyring.database import SCHEMA, Transaction, Value

_WAIT_S = 10.0
_POLL_S = 0.02
_SCRUB_WITHIN_S = 5.0


class _Statements:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, **values: Value) -> Sequence[Sequence[Value]]:
        return self._connection.execute(sql, values).fetchall()

    def lock(self, subject: bytes) -> None:
        """Nothing to do: a writing transaction has the whole file."""


class SqliteDatabase:
    """Implements `Database`.

    Args:
        path: Created with mode 0600 if it does not exist.
    Raises:
        KeyUnavailableError: The file cannot be opened, or is not a keyring.
    Security:
        Deleted rows are overwritten at once (`secure_delete`), and `scrub` empties the journal.
        Copies that a file system or a backup keeps are out of reach.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            weakref.finalize(self, self._connection.close)
            turn_on_journal(self._connection)
            for pragma in ("synchronous = FULL", "secure_delete = ON"):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
            with self.transaction() as transaction:
                for statement in SCHEMA:
                    transaction.execute(statement.format(blob="BLOB", serial="INTEGER PRIMARY KEY"))
        except OSError as exc:
            raise KeyUnavailableError(
                f"The keyring {path} cannot be opened: {exc.strerror}.",
                hint="Create its folder first, writable by the user who runs kvward.",
            ) from exc
        except sqlite3.OperationalError as exc:
            raise KeyringUnavailableError(f"The keyring {path} cannot be opened: {exc}.") from exc
        except sqlite3.DatabaseError as exc:
            raise KeyUnavailableError(
                f"The file {path} is not a keyring: {exc}.",
                hint="Name another file, or restore it from a backup.",
            ) from exc

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction that has the file for itself."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield _Statements(self._connection)
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except sqlite3.Error as exc:
                raise KeyringUnavailableError(
                    f"The keyring {self._path} does not answer: {exc}."
                ) from exc

    def scrub(self) -> None:
        """Empty the journal, in which deleted rows would remain."""
        deadline = time.monotonic() + _SCRUB_WITHIN_S
        # Another process that writes or empties it just now is waited for; so is a short reader.
        while (busy := self._empty_journal()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if busy:
            raise KeyringUnavailableError(
                f"The journal of the keyring {self._path} cannot be emptied while somebody reads "
                "it, and still holds what was deleted.",
                hint="What was asked for is done, but for this. End the reader (a backup?), and "
                "ask again.",
            )

    def _empty_journal(self) -> bool:
        """Try once, and tell whether somebody was in the way."""
        with self._lock:
            try:
                rows = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.Error as exc:
                raise KeyringUnavailableError(
                    f"The journal of the keyring {self._path} cannot be emptied: {exc}."
                ) from exc
        return bool(rows[0][0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def turn_on_journal(connection: sqlite3.Connection) -> None:
    """Switch a file to write-ahead logging, and wait for whoever is just doing the same.

    SQLite's own time-out does not cover this one statement.

    Raises:
        sqlite3.OperationalError: It stayed locked for ten seconds.
    """
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)
        else:
            return
