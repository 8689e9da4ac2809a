"""A secret in a local file of its own: mode 0600, owned by whoever runs kvward, never a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kvward.errors import KeyUnavailableError

_MAX_FILE_BYTES = 1024


def create_private_file(path: Path, content: bytes, *, what: str) -> None:
    """Write a secret into a file that did not exist; it is durable afterwards.

    Args:
        content: [secret]
        what: What to call the file in messages, for example "root key file".
    Raises:
        KeyUnavailableError: The file exists already (it is never overwritten), or its folder
            does not exist or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyUnavailableError(
            f"The {what} {path} exists already and is never overwritten.",
            hint="Name another path, or keep using the existing file.",
        ) from None
    except OSError as exc:
        raise KeyUnavailableError(
            f"The {what} {path} cannot be created: {exc.strerror}.",
            hint="Create its folder first, writable by the user who runs kvward.",
        ) from exc
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask was
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_private_file(path: Path, *, what: str, hint: str) -> bytes:
    """Return the beginning of a private file, at most 1,024 bytes. [secret]

    Args:
        what: What to call the file in messages.
        hint: What to do where it cannot be opened.
    Raises:
        KeyUnavailableError: The file is missing, not a regular file, owned by somebody else, or
            open to group or others.
    Security:
        Checks are made on the opened file, not on its path; links are not followed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        raise KeyUnavailableError(
            f"The {what} {path} cannot be read: {exc.strerror}.", hint=hint
        ) from exc
    # Not a file object: making one of a folder's descriptor fails before it can be looked at.
    try:
        _check_private(os.fstat(descriptor), path, what=what)
        return os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def _check_private(status: os.stat_result, path: Path, *, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyUnavailableError(f"The {what} {path} is not a regular file.")
    if status.st_uid != os.geteuid():
        raise KeyUnavailableError(
            f"The {what} {path} belongs to another user.",
            hint="Run kvward as its owner, or change the owner.",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise KeyUnavailableError(
            f"The {what} {path} is open to group or others "
            f"(mode {stat.S_IMODE(status.st_mode):04o}).",
            hint=f"Close it with: chmod 600 {path}",
        )
