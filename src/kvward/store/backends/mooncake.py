"""Sealed blocks in a Mooncake Store, with what that store can and cannot promise.

```
kw1/<tenant>/<scope>/<name>    pseudonyms in hexadecimal
    frame (see `frame`), CRC-32 of frame and sealed bytes, sealed bytes
```

**What the store's owner sees**: these pseudonyms, sizes, times, who reads which. No plaintext, no
key, no name of a tenant.

**What it does not promise**: when its memory is full, Mooncake evicts what was used least recently,
whoever put it. One tenant's load can so drop another's entries; a deployment that needs protected
shares needs another backend. `sweep` removes what is past its time and what a tenant has beyond its
share, and so only makes that rarer.

Mooncake overwrites an entry in place while others read it, and a reader gets parts of both. The
checksum turns such an answer into a miss. It is no protection against anybody: the seal is.
Forgetting is forced: otherwise Mooncake keeps an entry as long as somebody may be reading it, and
answers -706. A reader whose entry is forgotten meanwhile finds a miss in the same way.

Names and sizes are listed by the master's administration server. Whoever reaches that one can list
and change everything: give it an address of its own (`--metrics_host`), with
`metadata_server="P2PHANDSHAKE"`, since the metadata server listens on all interfaces whatever it is
told. So do the ports of every client.
"""

from __future__ import annotations

import re
import struct
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kvward.errors import BackendUnavailableError
from kvward.store.backend import (
    Bucket,
    BucketUsage,
    Buffer,
    Capabilities,
    Entry,
    EntryName,
    Room,
)
from kvward.store.backends.frame import (
    FRAME_BYTES,
    UNREADABLE,
    Frame,
    Framed,
    PutTimes,
    Swept,
    encode_frame,
    find_surplus,
    parse_unverified_frame,
)
from kvward.store.backends.mooncake_admin import Administration

_NO_ROOM = -200
_NOT_READY = -703
_NOT_FOUND = -704
_PER_STEP = 64
_PAUSE_S = 0.001
_OURS = re.compile(r"kw1/[0-9a-f]{32}/[0-9a-f]{32}/[0-9a-f]{64}", re.ASCII)
_CHECKSUM = struct.Struct(">I")
_BEFORE_BYTES = FRAME_BYTES + _CHECKSUM.size


class MooncakeStore(Protocol):
    """What is used of `mooncake.store.MooncakeDistributedStore`, after its set-up."""

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """Answer 1, 0 or an error below 0 for each key."""

    def get_batch(self, keys: list[str]) -> list[bytes]:
        """Answer the value of each key, no bytes where there is none."""

    def upsert_parts(self, key: str, *parts: Buffer) -> int:
        """Put or replace a value. Answers 0, or an error below 0."""

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        """Remove keys. Answers 0, or an error below 0, for each."""

    def remove_by_regex(self, pattern: str, force: bool) -> int:
        """Remove keys that match. Answers how many, or an error below 0."""


class MooncakeBackend:
    """A backend on a Mooncake Store.

    Args:
        store: A client that has been set up.
        room: Its share bounds every tenant, at each sweep.
        admin_host: Where the master's administration server listens.
        admin_port: And on which port.
        now_unix_s: Clock.
        timeout_s: For the administration server, and for a put that meets another of its name. The
            client's own waits are Mooncake's (`MC_RPC_TIMEOUT_MS`).
    """

    capabilities = Capabilities(
        protects_shares=False,
        shared_between_processes=True,
        durable=False,
        expires_by_itself=False,
    )

    def __init__(
        self,
        store: MooncakeStore,
        room: Room,
        *,
        admin_host: str,
        admin_port: int,
        now_unix_s: Callable[[], float] = time.time,
        timeout_s: float = 5.0,
    ) -> None:
        self._store = store
        self._room = room
        self._admin = Administration(admin_host, admin_port, timeout_s=timeout_s)
        self._now_unix_s = now_unix_s
        self._timeout_s = timeout_s
        self._put_times = PutTimes(now_unix_s)
        self._evicted: Counter[bytes] = Counter()

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        """Return the bytes put under each name, None where there are none. [untrusted]"""
        found: list[Buffer | None] = []
        now_unix_s = self._now_unix_s()
        for data in self._read([_key(name) for name in names]):
            frame = None if data is None else parse_unverified_frame(data)
            is_alive = frame is not None and frame.expires_unix_s > now_unix_s
            found.append(data[_BEFORE_BYTES:] if data is not None and is_alive else None)
        return found

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        """Keep entries, each as a whole or not at all, replacing those of the same name.

        Returns:
            For each entry whether it is kept: False if it exceeds the share by itself, or the
            store finds no room.
        """
        kept = []
        for entry, put_unix_ns in zip(entries, self._put_times.draw(len(entries)), strict=True):
            data = memoryview(entry.data).cast("B")
            if len(data) > self._room.share_bytes:
                kept.append(False)
                continue
            frame = encode_frame(Frame(entry.expires_unix_s, put_unix_ns))
            code = self._upsert(_key(entry.name), frame, data)
            if code not in {0, _NO_ROOM}:
                raise _no_answer(code)
            kept.append(code == 0)
        return kept

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        """Tell for each name whether `get_many` would find it now.

        Cost:
            As much as reading them: whether they are past their time stands in the entries.
        """
        now_unix_s = self._now_unix_s()
        frames = self._frames([_key(name) for name in names])
        return [frame.expires_unix_s > now_unix_s for frame in frames]

    def delete_many(self, names: Sequence[EntryName]) -> None:
        """Forget entries, even those that are being read; unknown names are ignored."""
        self._remove([_key(name) for name in names])

    def purge(self, bucket: Bucket) -> int:
        """Forget all entries of a bucket, even those being read, and tell how many."""
        scope = "[0-9a-f]{32}" if bucket.scope is None else bucket.scope.hex()
        pattern = f"^kw1/{bucket.tenant.hex()}/{scope}/[0-9a-f]{{64}}$"
        num_forgotten = self._store.remove_by_regex(pattern, True)
        if num_forgotten < 0:
            raise _no_answer(num_forgotten)
        return num_forgotten

    def stats(self) -> Mapping[bytes, BucketUsage]:
        """Return the usage of every tenant bucket that is not empty.

        Evictions are those of this object's own sweeps; the store does not tell of its own.
        """
        return {
            tenant: BucketUsage(
                num_entries=len(sizes),
                num_bytes=sum(sizes.values()),
                evicted_entries=self._evicted[tenant],
            )
            for tenant, sizes in self._list().items()
        }

    def sweep(self) -> Swept:
        """Remove what is past its time, and of every tenant the oldest beyond its share.

        Cost:
            Reads every entry.
        """
        num_expired = num_evicted = 0
        for tenant, sizes in self._list().items():
            keys = list(sizes)
            surplus = find_surplus(
                (Framed(k, sizes[k], f) for k, f in zip(keys, self._frames(keys), strict=True)),
                now_unix_s=self._now_unix_s(),
                share_bytes=self._room.share_bytes,
            )
            self._remove([*surplus.expired, *surplus.beyond_share])
            num_expired += len(surplus.expired)
            num_evicted += len(surplus.beyond_share)
            self._evicted[tenant] += len(surplus.beyond_share)
        return Swept(expired_entries=num_expired, evicted_entries=num_evicted)

    def _upsert(self, key: str, frame: bytes, data: memoryview) -> int:
        head = frame + _CHECKSUM.pack(zlib.crc32(data, zlib.crc32(frame)))
        parts = [head, data] if data else [head]  # a part of no bytes is refused
        deadline = time.monotonic() + self._timeout_s
        while True:
            code = self._store.upsert_parts(key, *parts)
            # Somebody else was putting or forgetting the same entry.
            if code not in {_NOT_READY, _NOT_FOUND} or time.monotonic() > deadline:
                return code
            time.sleep(_PAUSE_S)

    def _frames(self, keys: Sequence[str]) -> list[Frame]:
        read = self._read(keys)
        frames = (None if data is None else parse_unverified_frame(data) for data in read)
        return [frame or UNREADABLE for frame in frames]

    def _read(self, keys: Sequence[str]) -> list[memoryview | None]:
        # A read answers no bytes for what is not there and for a master that is not there.
        unique = list(dict.fromkeys(keys))
        found: dict[str, memoryview] = {}
        for at in range(0, len(unique), _PER_STEP):
            part = unique[at : at + _PER_STEP]
            codes = self._store.batch_is_exist(part)
            if len(codes) != len(part) or min(codes) < 0:
                raise _no_answer(min(codes, default=0))
            there = [key for key, code in zip(part, codes, strict=True) if code]
            if there:
                for key, data in zip(there, self._store.get_batch(there), strict=True):
                    whole = memoryview(data)
                    if _is_whole(whole):
                        found[key] = whole
        return [found.get(key) for key in keys]

    def _remove(self, keys: Sequence[str]) -> None:
        left = list(dict.fromkeys(keys))
        deadline = time.monotonic() + self._timeout_s
        while left:
            codes = self._store.batch_remove(left, True)
            if len(codes) != len(left) or not set(codes) <= {0, _NOT_FOUND, _NOT_READY}:
                raise _no_answer(min(codes, default=0))
            # Somebody is putting these.
            left = [key for key, code in zip(left, codes, strict=True) if code == _NOT_READY]
            if left and time.monotonic() > deadline:
                raise _no_answer(_NOT_READY)
            time.sleep(_PAUSE_S if left else 0)

    def _list(self) -> dict[bytes, dict[str, int]]:
        by_tenant: defaultdict[bytes, dict[str, int]] = defaultdict(dict)
        for key, num_bytes in self._admin.iter_sizes(_OURS.fullmatch):
            by_tenant[bytes.fromhex(key.split("/")[1])][key] = max(0, num_bytes - _BEFORE_BYTES)
        return by_tenant


def _key(name: EntryName) -> str:
    return f"kw1/{name.tenant.hex()}/{name.scope.hex()}/{name.name.hex()}"


def _is_whole(data: memoryview) -> bool:
    if len(data) < _BEFORE_BYTES:
        return False
    (expected,) = _CHECKSUM.unpack_from(data, FRAME_BYTES)
    return bool(expected == zlib.crc32(data[_BEFORE_BYTES:], zlib.crc32(data[:FRAME_BYTES])))


def _no_answer(code: int) -> BackendUnavailableError:
    return BackendUnavailableError(f"Mooncake could not do what was asked ({code}).")
