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
        files: list[Field] = []
        for name in sorted(set(names)):
            size, content = self._digest_file(folder / name)
            files.append([name, size, content])
        return hashlib.sha256(encode(_LABEL, files)).digest()

    def _digest_file(self, path: Path) -> tuple[int, bytes]:
        try:
            with path.open("rb", buffering=0) as file:
                identity = _identify(file.fileno())
                known = self._known.get(identity)
                if known is None:
                    known = hashlib.file_digest(file, "sha256").digest()
                    if _identify(file.fileno()) != identity:
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


def _identify(descriptor: int) -> _FileIdentity:
    status = os.fstat(descriptor)
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
