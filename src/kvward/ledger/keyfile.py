"""The signing key of a log in a local file: one line, mode 0600, owned by whoever runs kvward."""

from __future__ import annotations

from pathlib import Path

from kvward.errors import KeyUnavailableError, UsageError
from kvward.ledger.note import NoteSigner
from kvward.private_file import create_private_file, read_private_file

_FILE = "key file"


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
    create_private_file(path, signer.reveal().encode() + b"\n", what=_FILE)
    return signer


def load_log_key(path: Path) -> NoteSigner:
    """Load the signing key of a log.

    Raises:
        KeyUnavailableError: The file is missing, not a regular file, somebody else's, open to
            group or others, or does not hold such a key.
    Security:
        Checks are made on the opened file, not on its path; links are not followed.
    """
    hint = "A log and its key are made with: kvward ledger init DIR --origin NAME"
    content = read_private_file(path, what=_FILE, hint=hint)
    try:
        return NoteSigner.from_text(content.decode().removesuffix("\n"))
    except (UnicodeDecodeError, UsageError):
        raise KeyUnavailableError(
            f"The file {path} does not hold the signing key of a log.",
            hint="Restore it from a backup: nothing else can continue the log.",
        ) from None
