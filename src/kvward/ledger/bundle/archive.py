"""A bundle as one file: a tar in which nothing but names, lengths and contents can differ.

A header is accepted only if it is, byte for byte, what `canonical_header` makes of its name and
length. So there are no links, owners, times, modes or extensions in it, and one set of files has
one archive.

```
for each file, in the order of names:  header, 512 bytes | content | zeros up to 512
end:                                   zeros, 1,024 bytes or more, up to a multiple of 10,240
```

Source: POSIX ustar; docs/spec/bundle-v1.md, section 6.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Mapping

from kvward.errors import BundleError
from kvward.ledger.bundle.manifest import MANIFEST_NAME, MAX_FILES, MAX_TOTAL_BYTES, role_of

BLOCK_BYTES = tarfile.BLOCKSIZE
_RECORD_BYTES = tarfile.RECORDSIZE
_END_BYTES = 2 * BLOCK_BYTES
_MODE = 0o644


def canonical_header(name: str, num_bytes: int) -> bytes:
    """Return the header of a file, 512 bytes: an ordinary file of nobody, of the year 1970."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = num_bytes, _MODE
    return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")


def pad_to(num_bytes: int, multiple: int) -> int:
    """Return how many bytes are missing up to a multiple."""
    return -num_bytes % multiple


def end_of_archive(num_bytes: int) -> bytes:
    """Return what stands behind the last file of an archive that has so many bytes so far."""
    return bytes(_END_BYTES + pad_to(num_bytes + _END_BYTES, _RECORD_BYTES))


def parse_unverified_archive(data: bytes) -> dict[str, bytes]:
    """Return the files of an archive, by name. Nothing is written anywhere.

    Args:
        data: [untrusted]
    Raises:
        BundleError: It is not an archive as a bundle has it, or has too many files.
    """
    files: dict[str, bytes] = {}
    at, before = 0, ""
    while data[at : at + 1] != b"\x00" and at < len(data):
        name, num_bytes = _parse_header(data[at : at + BLOCK_BYTES])
        if name <= before or len(files) > MAX_FILES:
            raise BundleError("The archive's files are not in order, or are too many.")
        start, before = at + BLOCK_BYTES, name
        end = start + num_bytes
        at = end + pad_to(num_bytes, BLOCK_BYTES)
        if at > len(data) or any(data[end:at]):
            raise BundleError("The archive ends within a file, or has something between files.")
        files[name] = data[start:end]
    if data[at:] != end_of_archive(at):
        raise BundleError("The archive does not end as a bundle's does.")
    return files


def check_names(names: Iterable[str]) -> None:
    """Check that files are called as a bundle's files are.

    Raises:
        BundleError: One is not.
    """
    for name in names:
        if name != MANIFEST_NAME:
            role_of(name)


def check_total(files: Mapping[str, int]) -> None:
    """Check how many files there are and how many bytes they have.

    Raises:
        BundleError: Too many.
    """
    if len(files) > MAX_FILES + 1 or sum(files.values()) > MAX_TOTAL_BYTES:
        raise BundleError(
            f"A bundle has at most {MAX_FILES} files and {MAX_TOTAL_BYTES >> 20} MiB in all."
        )


def _parse_header(block: bytes) -> tuple[str, int]:
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
        if canonical_header(info.name, info.size) == block:
            check_names([info.name])
            return info.name, info.size
    except (tarfile.TarError, UnicodeError, ValueError):
        pass
    raise BundleError(
        "The archive has something else in it than plain files as a bundle has them.",
        hint="If another program packed it, unpack it and verify the folder.",
    )
