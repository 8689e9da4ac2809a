"""The signing key of a log in a local file: one line, mode 0600, owned by whoever runs kvward."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kvward.errors import KeyUnavailableError, UsageError
from kvward.ledger.note import NoteSigner

_MAX_FILE_BYTES = 1024


def create_log_key(path: Path, *, origin: str) -> NoteSigner:
    """Create a fresh signing key in a file and return it.

    Args:
        origin: Name of the log, which is the key's name, too.
    Raises:
        KeyUnavailableError: The file exists already (it is never overwritten), or its folder does
            not exist or cannot be written.
        UsageError: The origin is not one.
    """
    signer = NoteSigner.generate(origin)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyUnavailableError(
            f"The key file {path} exists already and is never overwritten.",
            hint="Name another path, or keep using the existing file.",
        ) from None
    except OSError as exc:
        raise KeyUnavailableError(
            f"The key file {path} cannot be created: {exc.strerror}.",
            hint="Create its folder first, writable by the user who runs kvward.",
        ) from exc
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask was
        file.write(signer.reveal().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return signer


def load_log_key(path: Path) -> NoteSigner:
    """Load the signing key of a log.

    Raises:
        KeyUnavailableError: The file is missing, not a regular file, somebody else's, open to
            group or others, or does not hold such a key.
    Security:
        Checks are made on the opened file, not on its path; links are not followed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        raise KeyUnavailableError(
            f"The key file {path} cannot be read: {exc.strerror}.",
            hint="A log and its key are made with: kvward ledger init DIR --origin NAME",
        ) from exc
    try:
        _check_private(os.fstat(descriptor), path)
        content = os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)
    try:
        return NoteSigner.from_text(content.decode().removesuffix("\n"))
    except (UnicodeDecodeError, UsageError):
        raise KeyUnavailableError(
            f"The file {path} does not hold the signing key of a log.",
            hint="Restore it from a backup: nothing else can continue the log.",
        ) from None


def _check_private(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise KeyUnavailableError(f"The key {path} is not a regular file of this user.")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise KeyUnavailableError(
            f"The key file {path} is open to group or others.",
            hint=f"Close it with: chmod 600 {path}",
        )
