"""A digest over every byte of a model's or an adapter's files, remembered by file identity.

A name or a revision says what should be there; this says what is. Reading 16 GB takes seconds, so a
file's digest is remembered for as long as device, inode, length and both times stay the same.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from kvward.canonical import Field, encode
from kvward.errors import ConfigError

_LABEL = "kvward/files/v1"
# A file may be written twice within one tick of its time stamp and look the same.
_SETTLED_NS = 2_000_000_000

_FileIdentity = tuple[int, int, int, int, int]


def identify_file(file: Path | int) -> _FileIdentity:
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


def digest_named_files(files: Iterable[tuple[str, int, bytes]]) -> bytes:
    """Return 32 bytes over names, lengths and content of files.

    Args:
        files: Name, length in bytes and SHA-256 of each, in any order, every name once.
    """
    fields: list[Field] = [list(file) for file in sorted(files)]
    return hashlib.sha256(encode(_LABEL, fields)).digest()


class FileDigests:
    """Digests of files, remembered in this process. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[_FileIdentity, bytes] = {}

    def digest(self, folder: Path, names: Iterable[str]) -> bytes:
        """Return 32 bytes over names, lengths and content of files.

        Args:
            folder: Where they lie; not part of the digest.
            names: Paths relative to it, "/" between folders; which files count is the caller's.
        Raises:
            ConfigError: A file cannot be read, or changed while it was read.
        """
        return digest_named_files(
            (name, *self._digest_file(folder / name)) for name in sorted(set(names))
        )

    def _digest_file(self, path: Path) -> tuple[int, bytes]:
        try:
            with path.open("rb", buffering=0) as file:
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
