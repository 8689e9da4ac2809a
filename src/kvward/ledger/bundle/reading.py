"""Reading a bundle, a folder or a .tar, into memory: within limits, without following links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kvward.errors import BundleError, ConfigError
from kvward.ledger.bundle.archive import check_names, check_total, parse_unverified_archive
from kvward.ledger.bundle.manifest import MAX_FILES, MAX_TOTAL_BYTES

_MAX_ARCHIVE_BYTES = MAX_TOTAL_BYTES + (MAX_FILES << 10)
_MAX_FOLDERS = MAX_FILES


def load_bundle(path: Path) -> dict[str, bytes]:
    """Return the files of a bundle by name. [untrusted]

    Args:
        path: A folder, or an archive.
    Raises:
        BundleError: There is a link, a device, a file of another name, or too much.
        ConfigError: It cannot be read.
    """
    try:
        if path.is_dir():
            return _load_folder(path)
        num_bytes = path.stat().st_size
        if not path.is_file() or num_bytes > _MAX_ARCHIVE_BYTES:
            raise BundleError(f"{path} is no file, or larger than a bundle may be.")
        return parse_unverified_archive(path.read_bytes())
    except OSError as exc:
        raise ConfigError(f"The bundle {path} cannot be read: {exc.strerror}.") from exc


def _load_folder(root: Path) -> dict[str, bytes]:
    found: dict[str, int] = {}
    folders = [""]
    for folder in folders:
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    folders.append(f"{name}/")
                elif stat.S_ISREG(status.st_mode):
                    found[name] = status.st_size
                else:
                    raise BundleError("The bundle's folder has a link or a device in it.")
                if len(found) + len(folders) > MAX_FILES + _MAX_FOLDERS:
                    raise BundleError("The bundle's folder has too many files in it.")
    check_names(found)
    check_total(found)
    return {name: _read(root / name, num_bytes) for name, num_bytes in sorted(found.items())}


def _read(path: Path, num_bytes: int) -> bytes:
    # Without following a link that has been put there since.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BundleError("The bundle's folder has a link or a device in it.")
        return file.read(num_bytes + 1)
