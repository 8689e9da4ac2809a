"""Entries as files in one folder, which several processes of one machine may share.

```
FOLDER/
  index.db                     who takes how much room; may be lost, see `reconcile`
  tmp/                         files that are being written
  entries/TENANT/SCOPE/NAME    sealed bytes; the file's modification time is when it expires
```

A file is written under `tmp`, made as durable as asked for, and then moved into place while the
index is held, so that a reader sees all of an entry or nothing, and a crash at any point leaves
whole entries and at most some rubbish that the next `reconcile` removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from kvward.errors import BackendUnavailableError, ConfigError, StoreError
from kvward.store.backend import (
    BUCKET_BYTES,
    MAX_ENTRY_BYTES,
    NAME_BYTES,
    Bucket,
    BucketUsage,
    Buffer,
    Capabilities,
    Entry,
    EntryName,
    Room,
)
from kvward.store.backends.index import EntryIndex

_SWEEP_EVERY_S = 30.0
_SWEPT_AT_ONCE = 1000
_ABANDONED_S = 3600.0
# Nothing there, a link, a folder in the way, or a pipe: whatever it is, it is no entry of ours.
_NOT_AN_ENTRY = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})


class Durability(StrEnum):
    """How much survives when the machine loses power; a killed process loses nothing of it.

    Sealed state can be computed anew and does not open when it is torn, so `NONE` is enough for
    isolation; the others keep more of it.
    """

    NONE = "none"
    DATA = "data"
    FULL = "full"


class FilesystemBackend:
    """Implements `Backend`.

    Args:
        folder: Made with mode 0700 if it does not exist.
        room: How much it keeps; the same in every process that shares the folder.
        durability: What is flushed before an entry becomes visible.
        now_unix_s: Clock.
    Raises:
        ConfigError: The folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        room: Room,
        *,
        durability: Durability = Durability.NONE,
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._entries, self._tmp = folder / "entries", folder / "tmp"
        try:
            for path in (folder, self._entries, self._tmp):
                path.mkdir(mode=0o700, exist_ok=True)
        except OSError as exc:
            raise ConfigError(
                f"The store {folder} cannot be used: {exc.strerror}.",
                hint="Create its parent folder, writable by the user who runs kvward.",
            ) from exc
        self._durability = durability
        self._now = now_unix_s
        self._index = EntryIndex(str(folder / "index.db"), room)
        self._sweep_lock = threading.Lock()
        self._swept_s = time.monotonic()
        self.reconcile()

    @property
    def capabilities(self) -> Capabilities:
        """Return what this backend can promise."""
        return Capabilities(
            protects_shares=True,
            shared_between_processes=True,
            durable=True,
            expires_by_itself=True,
        )

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        """Return the bytes put under each name."""
        return [self._read(name) for name in names]

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        """Keep entries."""
        with _translated():
            self._sweep_from_time_to_time()
            written: list[Path] = []
            try:
                for entry in entries:
                    written.append(self._tmp / secrets.token_hex(16))
                    self._write(written[-1], entry)
                return self._publish_all(entries, written)
            finally:
                for path in written:
                    path.unlink(missing_ok=True)

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        """Tell which names are there."""
        with _translated():
            return [self._is_live(name) for name in names]

    def delete_many(self, names: Sequence[EntryName]) -> None:
        """Forget entries."""
        with _translated(), self._index.batch():
            for name in names:
                self._forget(name)

    def purge(self, bucket: Bucket) -> int:
        """Forget a bucket, and with it whatever lies in its folder."""
        folder = self._entries / bucket.tenant.hex()
        if bucket.scope is not None:
            folder /= bucket.scope.hex()
        with _translated(), self._index.batch():
            names = {*self._index.names(bucket), *_iter_files(folder, self._entries)}
            for name in names:
                self._forget(name)
            shutil.rmtree(folder, ignore_errors=True)
        return len(names)

    def stats(self) -> Mapping[bytes, BucketUsage]:
        """Return the usage of every tenant, after a sweep."""
        while self.sweep():
            pass
        return self._index.usage()

    def sweep(self) -> int:
        """Forget entries past their time, and tell how many."""
        with _translated(), self._index.batch():
            names = self._index.expired(self._now(), limit=_SWEPT_AT_ONCE)
            for name in names:
                self._forget(name)
        return len(names)

    def reconcile(self) -> None:
        """Make index and files agree: what a crash, or a lost index, left behind.

        A row without a file of its length goes. A file without a row is taken on, as if it were
        put now, if it is still in its time and there is room; else it goes.
        """
        with _translated(), self._index.batch():
            known = set()
            for name, num_bytes in self._index.sizes().items():
                status = _status(self._path(name))
                regular = status is not None and stat.S_ISREG(status.st_mode)
                if status is not None and regular and status.st_size == num_bytes:
                    known.add(name)
                else:
                    self._index.remove(name)
            for name in _iter_files(self._entries, self._entries):
                if name not in known:
                    self._take_on(name)
            for path in self._tmp.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_ctime > _ABANDONED_S:
                        path.unlink()

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def _path(self, name: EntryName) -> Path:
        if (len(name.tenant), len(name.scope), len(name.name)) != (
            BUCKET_BYTES,
            BUCKET_BYTES,
            NAME_BYTES,
        ):
            raise ValueError("A name of an entry has 16, 16 and 32 bytes.")
        return self._entries / name.tenant.hex() / name.scope.hex() / name.name.hex()

    def _read(self, name: EntryName) -> bytes | None:
        with _translated():
            try:
                # No link is followed, and no pipe waited for.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(self._path(name), flags)
            except OSError as exc:
                if exc.errno in _NOT_AN_ENTRY:
                    return None
                raise
            if not self._is_live_entry(os.fstat(descriptor)):
                os.close(descriptor)
                return None
            # Into memory of our own: nobody changes it while it is being opened.
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                return file.readall()

    def _is_live(self, name: EntryName) -> bool:
        status = _status(self._path(name))
        return status is not None and self._is_live_entry(status)

    def _is_live_entry(self, status: os.stat_result) -> bool:
        return (
            stat.S_ISREG(status.st_mode)
            and status.st_size <= MAX_ENTRY_BYTES
            and status.st_mtime > self._now()
        )

    def _write(self, path: Path, entry: Entry) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            rest = memoryview(entry.data).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
            os.utime(descriptor, (entry.expires_unix_s, entry.expires_unix_s))
            if self._durability is not Durability.NONE:
                os.fsync(descriptor)

    def _publish_all(self, entries: Sequence[Entry], written: Sequence[Path]) -> list[bool]:
        """Move files into place. What was moved before one of them failed is kept, and counted."""
        kept: list[bool] = []
        failure = None
        with self._reconciled_on_failure(), self._index.batch():
            for entry, path in zip(entries, written, strict=True):
                try:
                    kept.append(self._publish(entry, path))
                except OSError as exc:
                    failure = exc
                    self._forget(entry.name)
                    break
        if failure is not None:
            raise failure
        return kept

    @contextlib.contextmanager
    def _reconciled_on_failure(self) -> Iterator[None]:
        """Make up for an index that took back what it had accounted for while files were moved."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(StoreError):
                self.reconcile()
            raise

    def _publish(self, entry: Entry, written: Path) -> bool:
        """Move a written file into place, after whatever has to go for it."""
        size = written.stat().st_size
        if size > MAX_ENTRY_BYTES:
            return False
        admitted, dropped = self._index.admit(
            entry.name, size, expires_unix_s=entry.expires_unix_s, now_unix_s=self._now()
        )
        for name in dropped:
            _discard(self._path(name))
        if admitted:
            target = self._path(entry.name)
            try:
                written.rename(target)
            except FileNotFoundError:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                written.rename(target)
            except IsADirectoryError:
                _discard(target)
                written.rename(target)
            if self._durability is Durability.FULL:
                _flush_folder(target.parent)
        return admitted

    def _take_on(self, name: EntryName) -> None:
        path = self._path(name)
        status = _status(path)
        admitted = False
        if status is not None and self._is_live_entry(status):
            admitted, dropped = self._index.admit(
                name,
                status.st_size,
                expires_unix_s=int(status.st_mtime),
                now_unix_s=self._now(),
            )
            for other in dropped:
                _discard(self._path(other))
        if not admitted:
            _discard(path)

    def _forget(self, name: EntryName) -> None:
        _discard(self._path(name))
        self._index.remove(name)

    def _sweep_from_time_to_time(self) -> None:
        with self._sweep_lock:
            due = time.monotonic() - self._swept_s > _SWEEP_EVERY_S
            if due:
                self._swept_s = time.monotonic()
        if due:
            self.sweep()


def _iter_files(folder: Path, entries: Path) -> Iterator[EntryName]:
    """Yield what lies where entries lie, whatever it is; other names are passed over."""
    for path in _iter_paths(folder, depth=3 - len(folder.relative_to(entries).parts)):
        parts = path.relative_to(entries).parts
        with contextlib.suppress(ValueError):
            tenant, scope, name = (bytes.fromhex(part) for part in parts)
            lengths = (len(tenant), len(scope), len(name))
            # Spelled as we spell it: no capital letters, no spaces.
            ours = (tenant.hex(), scope.hex(), name.hex()) == parts
            if ours and lengths == (BUCKET_BYTES, BUCKET_BYTES, NAME_BYTES):
                yield EntryName(tenant=tenant, scope=scope, name=name)


def _iter_paths(folder: Path, *, depth: int) -> Iterator[Path]:
    """Yield paths that many levels down; folders are entered, links are not."""
    try:
        with os.scandir(folder) as found:
            children = sorted(found, key=lambda child: child.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for child in children:
        if depth == 1:
            yield Path(child.path)
        elif child.is_dir(follow_symlinks=False):
            yield from _iter_paths(Path(child.path), depth=depth - 1)


def _status(path: Path) -> os.stat_result | None:
    """Return what lies there itself, not what a link leads to."""
    try:
        return path.lstat()
    except OSError as exc:
        if exc.errno in _NOT_AN_ENTRY:
            return None
        raise


def _discard(path: Path) -> None:
    """Remove whatever lies there, if anything does."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError, NotADirectoryError):
        shutil.rmtree(path, ignore_errors=True)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise BackendUnavailableError(
            f"The store's folder does not take part: {exc.strerror}.",
            hint="Look at free space, permissions and the mount.",
        ) from exc
