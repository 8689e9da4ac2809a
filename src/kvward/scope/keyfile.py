"""The root key in a local file: one line, mode 0600, owned by whoever runs kvward."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

from kvward.errors import KeyUnavailableError
from kvward.scope.keys import KEY_BYTES, RootKey

_PREFIX = b"kvward-root-1:"
_MAX_FILE_BYTES = 1024


def create_root_key(path: Path) -> RootKey:
    """Create a fresh root key file and return its key.

    Raises:
        KeyUnavailableError: The file exists already (it is never overwritten), or its folder
            does not exist or cannot be written.
    """
    material = os.urandom(KEY_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyUnavailableError(
            f"The root key file {path} exists already and is never overwritten.",
            hint="Name another path, or keep using the existing file.",
        ) from None
    except OSError as exc:
        raise KeyUnavailableError(
            f"The root key file {path} cannot be created: {exc.strerror}.",
            hint="Create its folder first, writable by the user who runs kvward.",
        ) from exc
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask was
        file.write(_PREFIX + base64.b64encode(material) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return RootKey(material)


def load_root_key(path: Path) -> RootKey:
    """Load a root key file.

    Raises:
        KeyUnavailableError: The file is missing, not a regular file, owned by somebody else,
            readable by group or others, or does not hold a root key.
    Security:
        Checks are made on the opened file, not on its path; links are not followed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        raise KeyUnavailableError(
            f"The root key file {path} cannot be read: {exc.strerror}.",
            hint="Create one with: kvward gateway init DIR --tenant NAME",
        ) from exc
    with os.fdopen(descriptor, "rb") as file:
        _check_private(os.fstat(file.fileno()), path)
        content = file.read(_MAX_FILE_BYTES)
    return _parse_unverified_key(content, path)


def _parse_unverified_key(content: bytes, path: Path) -> RootKey:
    try:
        prefix, encoded = content[: len(_PREFIX)], content[len(_PREFIX) :]
        material = base64.b64decode(encoded.strip(), validate=True)
        if prefix == _PREFIX:
            return RootKey(material)
    except ValueError:  # not base64, or not 32 bytes
        pass
    raise KeyUnavailableError(
        f"The file {path} does not hold a kvward root key.",
        hint="Restore it from a backup: scopes made with the old key cannot be reached again.",
    ) from None


def _check_private(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyUnavailableError(f"The root key {path} is not a regular file.")
    if status.st_uid != os.geteuid():
        raise KeyUnavailableError(
            f"The root key file {path} belongs to another user.",
            hint="Run kvward as its owner, or change the owner.",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise KeyUnavailableError(
            f"The root key file {path} is open to group or others "
            f"(mode {stat.S_IMODE(status.st_mode):04o}).",
            hint=f"Close it with: chmod 600 {path}",
        )
