"""The root key in a local file: one line, mode 0600, owned by whoever runs kvward."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from kvward.errors import KeyUnavailableError
from kvward.private_file import create_private_file, read_private_file
from kvward.scope.keys import KEY_BYTES, RootKey

_PREFIX = b"kvward-root-1:"
_FILE = "root key file"


def create_root_key(path: Path) -> RootKey:
    """Create a fresh root key file and return its key.

    Raises:
        KeyUnavailableError: The file exists already (it is never overwritten), or its folder
            does not exist or cannot be written.
    """
    material = os.urandom(KEY_BYTES)
    create_private_file(path, _PREFIX + base64.b64encode(material) + b"\n", what=_FILE)
    return RootKey(material)


def load_root_key(path: Path) -> RootKey:
    """Load a root key file.

    Raises:
        KeyUnavailableError: The file is missing, not a regular file, owned by somebody else,
            readable by group or others, or does not hold a root key.
    Security:
        Checks are made on the opened file, not on its path; links are not followed.
    """
    hint = "Create one with: kvward gateway init DIR --tenant NAME"
    return _parse_unverified_key(read_private_file(path, what=_FILE, hint=hint), path)


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
