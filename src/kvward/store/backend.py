"""The port to a place that keeps sealed bytes. It sees neither plaintext, keys nor tenant names.

A backend is untrusted: whatever it answers is opened, and what does not open is a miss. What it is
trusted with is only to keep one tenant's load from taking another's room, and to forget.

Six methods, synchronous, safe to call from several threads and (where the backend is shared) from
several processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

BUCKET_BYTES = 16
NAME_BYTES = 32
MAX_ENTRY_BYTES = 1 << 28
"""No part of a block is larger; whatever lies in a store and is, is none."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What is purged together: everything of a tenant, or of one scope of it.

    Attributes:
        tenant: Pseudonym, 16 bytes.
        scope: Pseudonym, 16 bytes; None for the whole tenant.
    """

    tenant: bytes
    scope: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryName:
    """Where one sealed block lies: tenant bucket / scope bucket / name, all of them pseudonyms.

    Attributes:
        tenant: 16 bytes.
        scope: 16 bytes.
        name: 32 bytes.
    """

    tenant: bytes
    scope: bytes
    name: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Sealed bytes on their way to a backend.

    Attributes:
        data: Opaque. The caller does not change it until `put_many` has returned.
        expires_unix_s: From then on the backend need not keep it and does not serve it.
    """

    name: EntryName
    data: Buffer
    expires_unix_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketUsage:
    """What one tenant bucket takes.

    Attributes:
        num_entries: Entries kept; where a backend sweeps by itself, none past its time.
        num_bytes: Their sealed bytes.
        evicted_entries: Entries of this tenant dropped for room since the backend was opened by
            this process, or since it was created, whichever the backend can know.
    """

    num_entries: int
    num_bytes: int
    evicted_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can promise.

    Attributes:
        protects_shares: It never drops a tenant's entries within its share for another's sake.
        shared_between_processes: Other processes see what was put.
        durable: What was put outlives the backend's process.
        expires_by_itself: Entries past their time go without a sweep.
    """

    protects_shares: bool
    shared_between_processes: bool
    durable: bool
    expires_by_itself: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How much a backend may keep, and what nobody can take from a tenant.

    Attributes:
        capacity_bytes: Of all tenants together, sealed bytes.
        share_bytes: Protected share of every tenant.

    What a tenant puts within its share is protected: nobody else's load drops it. While there is
    room it may put more; that is borrowed, and the first to go when another tenant needs room
    within its own share. A tenant that is beyond its share drops its own oldest entries.

    Shares never exceed the capacity: a tenant that comes when all room is promised to tenants that
    are there has no share. It borrows, and takes from nobody but itself.
    """

    capacity_bytes: int
    share_bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.share_bytes <= self.capacity_bytes:
            raise ValueError("A share has at least one byte and fits into the capacity.")


class Backend(Protocol):
    """A place that keeps sealed bytes.

    Every method raises `BackendUnavailableError` when the backend does not answer in time, and
    `BackendDataError` when it answers nonsense. A miss is not an error. Sequences may be empty.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Return what this backend can promise."""

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        """Return the bytes put under each name, None where there are none. [untrusted]

        Never returns part of an entry that is still being put. Entries past their time are None.
        """

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        """Keep entries, each as a whole or not at all; an entry of the same name is replaced.

        An entry is visible only after all of its bytes are as durable as the backend makes them.

        Returns:
            For each entry whether it is kept. False means that there was no room for it that was
            the tenant's to take; nothing of another tenant's share was touched. An earlier entry
            of the same name may then be gone or still be there.
        """

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        """Tell for each name whether `get_many` would find it now."""

    def delete_many(self, names: Sequence[EntryName]) -> None:
        """Forget entries; unknown names are ignored. The tenant's room is given back."""

    def purge(self, bucket: Bucket) -> int:
        """Forget all entries of a bucket that were put before the call, and tell how many.

        May be called again; entries put during the call may remain.
        """

    def stats(self) -> Mapping[bytes, BucketUsage]:
        """Return the usage of every tenant bucket (16 bytes) that is not empty."""
