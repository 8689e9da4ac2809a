"""Files that are there after a crash: written, synchronised, and published by a rename."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kvward.errors import LedgerBusyError, LedgerError

LOCK = "lock"
UNFINISHED = ".new"


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder; they and their folders' entries are durable afterwards.

    Not atomic: a crash may leave any part of them. So nothing may refer to them before.

    Raises:
        OSError: Something cannot be written.
    """
    folders = set()
    for name, data in files.items():
        path = folder / name
        folders |= _make_parents(path, folder)
        _write(path, data)
    for changed in folders:
        sync_folder(changed)


def publish_file(path: Path, data: bytes) -> None:
    """Replace a file by another content, durably: a reader finds the old one or the new one.

    Whoever has seen the new one may rely on it: if a loss of power takes the rename back, the file
    is there under its name with `UNFINISHED` behind it.

    Raises:
        OSError: It cannot be written.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    _write(unfinished, data)
    sync_folder(path.parent)
    unfinished.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FolderLock:
    """Held by the one process that may change a log. Ends with the process, whatever ends it.

    Args:
        folder: Of the log.
    Raises:
        LedgerBusyError: Another one holds it.
        LedgerError: The folder does not exist or cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._descriptor = os.open(
                folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as exc:
            raise LedgerError(
                f"The log in {folder} cannot be locked: {exc.strerror}.",
                hint="A log is begun with: kvward ledger init DIR --origin NAME",
            ) from exc
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(self._descriptor)
            raise LedgerBusyError(
                f"Another process writes the log in {folder}.",
                hint="One log has one writer. Stop the other one, or give this one its own log.",
            ) from exc

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _make_parents(path: Path, top: Path) -> set[Path]:
    """Make the folders above a file; return those whose names changed."""
    changed, parent = {path.parent}, path.parent
    missing = []
    while parent != top and not parent.is_dir():
        missing.append(parent)
        parent = parent.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o755, exist_ok=True)
        changed.add(folder.parent)
    return changed
