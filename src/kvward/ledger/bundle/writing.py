"""Writing a bundle: as a folder, or as the one archive that its files have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvward.errors import ConfigError
from kvward.ledger.bundle.archive import (
    BLOCK_BYTES,
    canonical_header,
    check_names,
    check_total,
    end_of_archive,
    pad_to,
)
from kvward.ledger.bundle.manifest import MANIFEST_NAME, make_manifest


def with_manifest(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a bundle with their manifest; one that they had is made anew."""
    listed = {name: data for name, data in files.items() if name != MANIFEST_NAME}
    return listed | {MANIFEST_NAME: make_manifest(listed)}


def make_archive(files: Mapping[str, bytes]) -> bytes:
    """Return the archive of a bundle's files: the same files, the same bytes.

    Raises:
        BundleError: A file is called otherwise than a bundle's, or they are too many.
    """
    check_names(files)
    check_total({name: len(data) for name, data in files.items()})
    parts = [
        part
        for name, data in sorted(files.items())
        for part in (
            canonical_header(name, len(data)),
            data,
            bytes(pad_to(len(data), BLOCK_BYTES)),
        )
    ]
    return b"".join([*parts, end_of_archive(sum(map(len, parts)))])


def save_bundle(files: Mapping[str, bytes], path: Path) -> None:
    """Write a bundle: an archive where the name ends in .tar, else a folder.

    Raises:
        ConfigError: There is something already, or it cannot be written.
        BundleError: The files are not those of a bundle.
    """
    check_names(files)
    try:
        if path.suffix == ".tar":
            data = make_archive(files)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(data)
            return
        path.mkdir(parents=True, exist_ok=False)
        for name, data in files.items():
            place = path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    except FileExistsError as exc:
        raise ConfigError(
            f"{path} is there already.", hint="Give a new name; a bundle is never written over."
        ) from exc
    except OSError as exc:
        raise ConfigError(f"The bundle {path} cannot be written: {exc.strerror}.") from exc
