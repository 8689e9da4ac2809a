"""The manifest of a bundle: which files there are, what each is for, and its SHA-256.

The manifest is a table of contents and nothing else. Nobody signs it, and nothing is believed
because it says so: what a bundle shows follows from signatures, the log and the histories.

Source: docs/spec/bundle-v1.md, section 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from kvward.errors import BundleError
from kvward.ledger.document import parse_unverified_object, sha256_hex, to_canonical_json

FORMAT = "kvward evidence bundle 1"
MANIFEST_NAME = "manifest.json"
MAX_FILES = 4_096
MAX_TOTAL_BYTES = 1 << 30
MAX_MANIFEST_BYTES = 2 << 20


class Role(StrEnum):
    """What a file of a bundle is for."""

    CHECKPOINT = "checkpoint"
    OLDER_CHECKPOINT = "older-checkpoint"
    CONSISTENCY = "consistency"
    ENTRIES = "entries"
    KEYS = "keys"
    CONTRACT = "contract"
    CONTRACT_ENVELOPE = "contract-envelope"
    PLAN = "plan"
    HISTORY = "history"
    REPORT = "report"
    STATEMENT = "statement"


FIXED_NAMES = {
    Role.CHECKPOINT: "log/checkpoint.txt",
    Role.OLDER_CHECKPOINT: "log/older-checkpoint.txt",
    Role.CONSISTENCY: "log/consistency.json",
    Role.ENTRIES: "log/entries.jsonl",
    Role.KEYS: "keys.txt",
    Role.CONTRACT: "contract.json",
    Role.CONTRACT_ENVELOPE: "contract.dsse.json",
}
AUDIT_NAMES = {
    Role.PLAN: "plan.json",
    Role.HISTORY: "history.jsonl",
    Role.REPORT: "report.json",
    Role.STATEMENT: "statement.dsse.json",
}
"""Below "audits/ID", where ID is how the plan's digest begins."""
ALWAYS = frozenset({Role.CHECKPOINT, Role.ENTRIES, Role.KEYS})
_AUDIT_FILE = re.compile(r"audits/([0-9a-f]{16})/([a-z.]{1,32})")
_ROLES = {name: role for role, name in FIXED_NAMES.items()}
_AUDIT_ROLES = {name: role for role, name in AUDIT_NAMES.items()}


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a bundle.

    Attributes:
        name: From the bundle's root, with "/" between folders.
        bytes: How long it is.
    """

    name: str
    role: Role
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    bytes: Annotated[int, Meta(ge=0, le=MAX_TOTAL_BYTES)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of contents, sorted by name; the manifest itself is not in it."""

    format: str
    files: Annotated[tuple[FileEntry, ...], Meta(max_length=MAX_FILES)]


def role_of(name: str) -> tuple[Role, str]:
    """Return what a file of a bundle is for, and the id of its audit or an empty text.

    Raises:
        BundleError: No file of a bundle is called so.
    """
    if name in _ROLES:
        return _ROLES[name], ""
    found = _AUDIT_FILE.fullmatch(name)
    if found is None or found[2] not in _AUDIT_ROLES:
        raise BundleError("The bundle has a file of a name that no file of a bundle has.")
    return _AUDIT_ROLES[found[2]], found[1]


def audit_file(role: Role, audit_id: str) -> str:
    """Return the name of an audit's file."""
    return f"audits/{audit_id}/{AUDIT_NAMES[role]}"


def audit_id_of(plan_digest: str) -> str:
    """Return the id of an audit in a bundle."""
    return plan_digest[:16]


def make_manifest(files: Mapping[str, bytes]) -> bytes:
    """Return the manifest of files, which do not hold one yet.

    Raises:
        BundleError: A file has a name that no file of a bundle has.
    """
    entries = tuple(
        FileEntry(name=name, role=role_of(name)[0], sha256=sha256_hex(data), bytes=len(data))
        for name, data in sorted(files.items())
    )
    return to_canonical_json(Manifest(format=FORMAT, files=entries))


def parse_unverified_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Args:
        data: [untrusted]
    Raises:
        BundleError: It is none of this version, or not in its one spelling.
    """
    value = parse_unverified_object(data, what="the manifest", max_bytes=MAX_MANIFEST_BYTES)
    if value.get("format") != FORMAT:
        raise BundleError(
            f"This version reads the format {FORMAT!r} and no other.",
            hint="If a later kvward wrote the bundle, verify it with that.",
        )
    try:
        manifest = msgspec.convert(value, Manifest)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise BundleError(f"The manifest is not one: {exc}.") from exc
    if to_canonical_json(manifest) != data:
        raise BundleError("The manifest is not in its one spelling.")
    return manifest


def check_manifest(files: Mapping[str, bytes]) -> Manifest:
    """Return the manifest of files that are exactly those which it lists.

    Args:
        files: Of the bundle, by name, the manifest among them. [untrusted]
    Raises:
        BundleError: A file is missing, more than listed, changed, called otherwise, or not in the
            manifest's place.
    """
    if MANIFEST_NAME not in files:
        raise BundleError(
            f"There is no {MANIFEST_NAME}.", hint="Give the folder or the .tar of a bundle."
        )
    manifest = parse_unverified_manifest(files[MANIFEST_NAME])
    listed = [entry.name for entry in manifest.files]
    if listed != sorted(set(listed)):
        raise BundleError("The manifest lists a file twice, or not in order.")
    if set(listed) | {MANIFEST_NAME} != set(files):
        raise BundleError("The manifest does not list exactly the files that there are.")
    for entry in manifest.files:
        if role_of(entry.name)[0] is not entry.role:
            raise BundleError(f"The manifest calls {entry.name} what it is not.")
        data = files[entry.name]
        if len(data) != entry.bytes or sha256_hex(data) != entry.sha256:
            raise BundleError(f"{entry.name} is not the file that the manifest names.")
    return manifest
