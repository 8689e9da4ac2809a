"""Sealed blocks in a bucket that speaks S3, or in any other store that `obstore` reaches.

```
<prefix>/<tenant>/<scope>/<name>    pseudonyms in hexadecimal
    frame (see `frame`), sealed bytes
```

The frame tells when an entry expires. It is not authenticated: the age that counts stands inside
the sealed header.

**What the bucket's owner sees**: these pseudonyms, how many entries of which size a tenant and each
of its scopes have, when they were put and read, and when they expire. No plaintext, no key, no name
of a tenant.

A bucket neither expires by this frame nor knows shares, so a put refuses only what is larger than a
share by itself, and `sweep`, called now and then by one process, removes what is past its time and
what a tenant has beyond its share, its own oldest first. Nobody's entries go for another's sake.
`Room.capacity_bytes` is the operator's part. Purges list a bucket by its prefix, and need a bucket
without versioning or object lock, which would keep what was deleted.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import obstore
from obstore.store import ObjectStore

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
from kvward.store.backends.s3_bucket import translated

_LISTED_AT_ONCE = 1000


class _Object(NamedTuple):
    path: str
    num_bytes: int  # of the sealed bytes


class S3Backend:
    """A backend on an object store.

    Args:
        store: Where the objects lie; see `s3_bucket.connect_s3` for one with bounded waits.
        room: Its share bounds every tenant, at each sweep.
        prefix: First part of every key. One bucket may serve several deployments under several.
        now_unix_s: Clock.
        max_requests: So many requests at a time, of all calls together.
    """

    capabilities = Capabilities(
        protects_shares=True,
        shared_between_processes=True,
        durable=True,
        expires_by_itself=False,
    )

    def __init__(
        self,
        store: ObjectStore,
        room: Room,
        *,
        prefix: str = "kvward",
        now_unix_s: Callable[[], float] = time.time,
        max_requests: int = 16,
    ) -> None:
        self._store = store
        self._room = room
        self._prefix = prefix
        self._path = re.compile(
            re.escape(prefix) + r"/([0-9a-f]{32})/[0-9a-f]{32}/[0-9a-f]{64}", re.ASCII
        )
        self._now_unix_s = now_unix_s
        self._threads = ThreadPoolExecutor(max_requests, thread_name_prefix="kvward-s3")
        self._lock = threading.Lock()
        self._put_times = PutTimes(now_unix_s)
        self._evicted: Counter[bytes] = Counter()

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        """Return the bytes put under each name, None where there are none. [untrusted]"""
        return list(self._threads.map(self._get, names))

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        """Keep entries, each as a whole or not at all, replacing those of the same name.

        Returns:
            For each entry whether it is kept: False if it exceeds the share by itself.
        """
        kept = [len(memoryview(e.data).cast("B")) <= self._room.share_bytes for e in entries]
        # Requests overtake each other, so of several entries of one name only the last is sent.
        last = {e.name: e for e, is_kept in zip(entries, kept, strict=True) if is_kept}
        list(self._threads.map(self._put, last.values(), self._put_times.draw(len(last))))
        return kept

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        """Tell for each name whether `get_many` would find it now."""
        paths = [self._path_of(name) for name in names]
        now_unix_s = self._now_unix_s()
        return [
            frame.expires_unix_s > now_unix_s for frame in self._threads.map(self._frame, paths)
        ]

    def delete_many(self, names: Sequence[EntryName]) -> None:
        """Forget entries; unknown names are ignored."""
        self._delete([self._path_of(name) for name in names])

    def purge(self, bucket: Bucket) -> int:
        """Forget all entries of a bucket that were put before the call, and tell how many."""
        parts = [bucket.tenant.hex(), *([] if bucket.scope is None else [bucket.scope.hex()])]
        found = [each.path for each in self._list("/".join([self._prefix, *parts]))]
        self._delete(found)
        return len(found)

    def stats(self) -> Mapping[bytes, BucketUsage]:
        """Return the usage of every tenant bucket that is not empty.

        Evictions are those of this object's own sweeps.

        Cost:
            Lists all keys, a thousand per request.
        """
        num_entries: Counter[bytes] = Counter()
        num_bytes: Counter[bytes] = Counter()
        for each in self._list(self._prefix):
            tenant = self._tenant_of(each)
            num_entries[tenant] += 1
            num_bytes[tenant] += each.num_bytes
        with self._lock:
            return {
                tenant: BucketUsage(
                    num_entries=count,
                    num_bytes=num_bytes[tenant],
                    evicted_entries=self._evicted[tenant],
                )
                for tenant, count in num_entries.items()
            }

    def sweep(self) -> Swept:
        """Remove what is past its time, and of every tenant the oldest beyond its share.

        An entry that is put again while it is being removed may go with it, and is then a miss.

        Cost:
            Lists all keys, and reads the first bytes of every object.
        """
        by_tenant: defaultdict[bytes, list[_Object]] = defaultdict(list)
        for each in self._list(self._prefix):
            by_tenant[self._tenant_of(each)].append(each)
        num_expired = num_evicted = 0
        for tenant, objects in by_tenant.items():
            frames = self._threads.map(self._frame, [each.path for each in objects])
            surplus = find_surplus(
                (Framed(*each, frame) for each, frame in zip(objects, frames, strict=True)),
                now_unix_s=self._now_unix_s(),
                share_bytes=self._room.share_bytes,
            )
            self._delete([*surplus.expired, *surplus.beyond_share])
            num_expired += len(surplus.expired)
            num_evicted += len(surplus.beyond_share)
            with self._lock:
                self._evicted[tenant] += len(surplus.beyond_share)
        return Swept(expired_entries=num_expired, evicted_entries=num_evicted)

    def close(self) -> None:
        """End the threads of this object. It cannot be used afterwards."""
        self._threads.shutdown()

    def _get(self, name: EntryName) -> Buffer | None:
        with translated():
            try:
                data = memoryview(obstore.get(self._store, self._path_of(name)).bytes())
            except FileNotFoundError:
                return None
        # Not an object of ours, or damaged: a miss, which the next sweep removes.
        frame = parse_unverified_frame(data) or UNREADABLE
        return data[FRAME_BYTES:] if frame.expires_unix_s > self._now_unix_s() else None

    def _put(self, entry: Entry, put_unix_ns: int) -> None:
        frame = encode_frame(Frame(entry.expires_unix_s, put_unix_ns))
        parts: list[bytes | memoryview] = [frame, memoryview(entry.data).cast("B")]
        with translated():
            path = self._path_of(entry.name)
            obstore.put(self._store, path, iter(parts), use_multipart=False)

    def _frame(self, path: str) -> Frame:
        with translated():
            try:
                data = obstore.get_range(self._store, path, start=0, length=FRAME_BYTES)
            except FileNotFoundError:
                return UNREADABLE
        return parse_unverified_frame(memoryview(data)) or UNREADABLE

    def _list(self, prefix: str) -> Iterator[_Object]:
        with translated():
            for chunk in obstore.list(self._store, prefix, chunk_size=_LISTED_AT_ONCE):
                for meta in chunk:
                    if self._path.fullmatch(meta["path"]) and meta["size"] >= FRAME_BYTES:
                        yield _Object(meta["path"], meta["size"] - FRAME_BYTES)

    def _delete(self, paths: Iterable[str]) -> None:
        wanted = list(dict.fromkeys(paths))
        if wanted:
            # Some stores complain of what is not there; then the others were removed all the same.
            with translated(), suppress(FileNotFoundError):
                obstore.delete(self._store, wanted)

    def _path_of(self, name: EntryName) -> str:
        return f"{self._prefix}/{name.tenant.hex()}/{name.scope.hex()}/{name.name.hex()}"

    def _tenant_of(self, listed: _Object) -> bytes:
        return bytes.fromhex(listed.path.removeprefix(f"{self._prefix}/")[:32])
