"""A digest over every byte of a model's or an adapter's files, remembered by file identity.

A name or a revision says what should be there; this says what is. Reading 16 GB takes seconds, so a
file's digest is remembered for as long as device, inode, length and both times stay the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from kvward.canonical import Field, encode
from kvward.errors import ConfigError

_LABEL = "kvward/files/v1"
# A file may be written twice within one tick of its time stamp and look the same.
_SETTLED_NS = 2_000_000_000

FileIdentity = tuple[int, int, int, int, int]


def identify_file(file: Path | int) -> FileIdentity:
    """Return what changes when a file does: device, inode, length, both times.

    Args:
        file: A path or an open descriptor.
    Raises:
        OSError: It cannot be asked.
    """
    status = os.stat(file)  # noqa: PTH116 - of a descriptor too
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def newest_change_ns(folder: Path, names: Iterable[str]) -> int:
    """Return when the last of a folder's files changed in any way, in Unix nanoseconds.

    Args:
        names: Paths relative to the folder, at least one.
    Raises:
        OSError: One cannot be asked.
    """
    return max(identify_file(folder / name)[-1] for name in names)


def digest_named_files(files: Iterable[tuple[str, int, bytes]]) -> bytes:
    """Return 32 bytes over names, lengths and content of files.

    Args:
        files: Name, length in bytes and SHA-256 of each, in any order, every name once.
    """
    fields: list[Field] = [list(file) for file in sorted(files)]
    return hashlib.sha256(encode(_LABEL, fields)).digest()


def list_files(folder: Path) -> tuple[str, ...]:
    """Return the names of all files under a folder, relative to it, "/" between folders.

    For an adapter all of them count: which ones an engine reads is the engine's affair.

    Raises:
        ConfigError: There is none, a folder cannot be read, or is a link and so may lead anywhere.
    """
    names: list[str] = []

    def refuse(error: OSError) -> None:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}.") from error

    for place, folders, files in os.walk(folder, onerror=refuse):
        for name in folders:
            if Path(place, name).is_symlink():
                raise ConfigError(
                    f"{Path(place, name)} is a link to a folder.",
                    hint="Put the files themselves there; links to files are followed.",
                )
        names += [Path(place, name).relative_to(folder).as_posix() for name in files]
    if not names:
        raise ConfigError(f"{folder} holds no files.")
    strange = next((name for name in names if not _is_text(name)), None)
    if strange is not None:
        raise ConfigError(f"The name of the file {strange!r} in {folder} is not UTF-8.")
    return tuple(sorted(names))


class FileDigests:
    """Digests of files, remembered in this process. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[FileIdentity, bytes] = {}

    def digest(self, folder: Path, names: Iterable[str]) -> bytes:
        """Return 32 bytes over names, lengths and content of files.

        Args:
            folder: Where they lie; not part of the digest.
            names: Paths relative to it, "/" between folders; which files count is the caller's.
        Raises:
            ConfigError: There are no names, a file cannot be read, or changed while it was read.
        """
        chosen = sorted(set(names))
        if not chosen:
            raise ConfigError(f"No files of {folder} were named, so there is nothing to digest.")
        return digest_named_files((name, *self._digest_file(folder / name)) for name in chosen)

    def _digest_file(self, path: Path) -> tuple[int, bytes]:
        try:
            with open(path, "rb", buffering=0, opener=_open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ConfigError(f"{path} is not a regular file.")
                identity = identify_file(file.fileno())
                known = self._known.get(identity)
                if known is None:
                    known = hashlib.file_digest(file, "sha256").digest()
                    if identify_file(file.fileno()) != identity:
                        raise ConfigError(
                            f"{path} changed while it was read.", hint="Wait until it is complete."
                        )
                    if time.time_ns() - max(identity[3:]) > _SETTLED_NS:
                        self._known[identity] = known
        except OSError as exc:
            raise ConfigError(
                f"{path} cannot be read: {exc.strerror}.",
                hint="Without all of a model's files its state cannot be named, nor kept.",
            ) from exc
        return identity[2], known


def _open_at_once(path: str, flags: int) -> int:
    # A pipe in place of a file must not keep us waiting for somebody to write into it.
    return os.open(path, flags | os.O_NONBLOCK)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
