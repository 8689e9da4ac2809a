"""Sealed blocks on a Valkey server or cluster, every tenant on one node and within its share.

**What the store's owner sees**: the pseudonyms in the names of keys (see `valkey_names`), how many
entries a tenant and each of its scopes have, how large they are, when they were put and when they
expire, and who reads which. No plaintext, no key, no name of a tenant.

**How purge works on a cluster**: a hash tag makes all keys of a tenant fall into one slot, so one
script on one node forgets an entry, its place in each index and its bytes in one step. A purge asks
the index of the tenant or of the scope for what was put before it began, and forgets a thousand per
step; it never scans the keyspace, and other tenants of the node wait for one step at most. A master
that dies right after a purge, before its replica heard of it, takes the purge with it: what its
replica still holds expires in time, or is forgotten by the same purge called again.

A tenant keeps at most `Room.share_bytes` and borrows nothing: its own oldest entries go first.
`Room.capacity_bytes` is the operator's part: `maxmemory` above it (an entry costs about 1 KB beside
its bytes) and `maxmemory-policy noeviction`, which is checked. A full server refuses puts. On a
cluster, `cluster-require-full-coverage no` keeps the other slots serving when a master is lost;
while a slot is moved, its tenants' calls raise `BackendUnavailableError`. Valkey 7.2 or newer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import valkey
import valkey.exceptions as vk

from kvward.errors import BackendDataError
from kvward.store.backend import (
    Bucket,
    BucketUsage,
    Buffer,
    Capabilities,
    Entry,
    EntryName,
    Room,
)
from kvward.store.backends.valkey_names import (
    EVERY_USE_KEY,
    entry_key,
    member_of,
    new_staging_key,
    parse_use_key,
    use_key,
)
from kvward.store.backends.valkey_nodes import (
    ClusterNodes,
    Nodes,
    SingleNode,
    check_never_evicts,
    run_on_node,
    run_pipeline,
    run_script,
    translated,
)
from kvward.store.backends.valkey_scripts import COMMIT, DELETE, PURGE, USAGE, Script

_STAGED_MS = 60_000
_LONGEST_LIFE_MS = 10 * 365 * 86_400_000
_PER_STEP = 1000
_PER_READ = 128


class ValkeyBackend:
    """A backend on one Valkey server, or on a cluster.

    Args:
        url: `valkey://`, `valkeys://` (TLS) or `unix://`; of any node of a cluster. [secret]
        room: Its share bounds every tenant.
        cluster: Whether the address is that of a cluster.
        now_unix_s: Clock that turns an entry's expiry into the time it has left.
        timeout_s: For connecting, and for every wait for the server.
        server_never_evicts: Vouch for `noeviction` where the server does not tell its policy.
    """

    capabilities = Capabilities(
        protects_shares=True,
        shared_between_processes=True,
        durable=False,
        expires_by_itself=True,
    )

    def __init__(
        self,
        url: str,
        room: Room,
        *,
        cluster: bool = False,
        now_unix_s: Callable[[], float] = time.time,
        timeout_s: float = 1.0,
        server_never_evicts: bool = False,
    ) -> None:
        self._url = url
        self._room = room
        self._kind = ClusterNodes if cluster else SingleNode
        self._now_unix_s = now_unix_s
        self._timeout_s = timeout_s
        self._vouched = server_never_evicts
        self._checked: WeakSet[valkey.Valkey] = WeakSet()
        self._opened: Nodes | None = None
        self._opening = threading.Lock()

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        """Return the bytes put under each name, None where there are none. [untrusted]"""
        found: list[Buffer | None] = [None] * len(names)
        for tenant, places in _by_tenant(names).items():
            for part in _parts(places, _PER_READ):
                values = self._run(tenant, _reading([names[at] for at in part]))
                for at, value in zip(part, _checked(values, of=len(part)), strict=True):
                    if value is not None and not isinstance(value, bytes):
                        raise _nonsense()
                    found[at] = value
        return found

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        """Keep entries, each as a whole or not at all, replacing those of the same name.

        The bytes travel under a name of their own; one script then counts them, makes room among
        the tenant's oldest and gives them their name.

        Returns:
            For each entry whether it is kept: False if it exceeds the share, or the server is full.
        """
        kept = [False] * len(entries)
        for tenant, places in _by_tenant([entry.name for entry in entries]).items():
            for part in _parts(places, _PER_READ):
                batch = [entries[at] for at in part]
                for at, is_kept in zip(part, self._put(tenant, batch), strict=True):
                    kept[at] = is_kept
        return kept

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        """Tell for each name whether `get_many` would find it now."""
        found = [False] * len(names)
        for tenant, places in _by_tenant(names).items():
            for part in _parts(places, _PER_STEP):
                answers = self._run(tenant, _finding([names[at] for at in part]))
                for at, answer in zip(part, answers, strict=True):
                    found[at] = answer == 1
        return found

    def delete_many(self, names: Sequence[EntryName]) -> None:
        """Forget entries; unknown names are ignored. The tenant's room is given back."""
        for tenant, places in _by_tenant(names).items():
            for part in _parts(places, _PER_STEP):
                self._script(tenant, DELETE, [member_of(names[at]) for at in part])

    def purge(self, bucket: Bucket) -> int:
        """Forget all entries of a bucket that were put before the call, and tell how many."""
        scope = "" if bucket.scope is None else bucket.scope.hex()
        youngest: str | bytes = ""
        num_forgotten = 0
        while True:
            answer = self._script(bucket.tenant, PURGE, [scope, youngest, _PER_STEP])
            forgotten, seen, youngest = _checked(answer, of=3)
            num_forgotten += int(forgotten)
            if seen < _PER_STEP:
                return num_forgotten

    def stats(self) -> Mapping[bytes, BucketUsage]:
        """Return the usage of every tenant bucket that is not empty, after sweeping it.

        Cost:
            Walks over all keys of every master, without stopping it.
        """
        usage = {}
        for tenant in self._tenants():
            entries, num_bytes, evicted = _checked(self._script(tenant, USAGE, []), of=3)
            if entries:
                usage[tenant] = BucketUsage(
                    num_entries=int(entries),
                    num_bytes=int(num_bytes),
                    evicted_entries=int(evicted),
                )
        return usage

    def close(self) -> None:
        """Close all connections. The backend opens new ones if it is used again."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    def _put(self, tenant: bytes, batch: Sequence[Entry]) -> list[bool]:
        now_unix_s = self._now_unix_s()
        staged = [new_staging_key(tenant) for _ in batch]
        arguments: list[str | int] = [self._room.share_bytes]
        for key, entry in zip(staged, batch, strict=True):
            life_ms = int((entry.expires_unix_s - now_unix_s) * 1000)
            life_ms = max(1, min(life_ms, _LONGEST_LIFE_MS))
            arguments += [key, member_of(entry.name), life_ms]

        def put(client: valkey.Valkey) -> list[bool]:
            pipeline = client.pipeline(transaction=False)
            for key, entry in zip(staged, batch, strict=True):
                # Larger than the share is refused here too, without being sent.
                data = memoryview(entry.data).cast("B")
                if len(data) <= self._room.share_bytes:
                    pipeline.set(key, data, px=_STAGED_MS)
            try:
                run_pipeline(pipeline)
                answer = run_script(client, COMMIT, use_key(tenant), arguments)
            except vk.OutOfMemoryError:
                client.unlink(*staged)
                return [False] * len(batch)
            return [kept == 1 for kept in _checked(answer, of=len(batch))]

        kept: list[bool] = self._run(tenant, put)
        return kept

    def _tenants(self) -> Iterable[bytes]:
        found: set[bytes] = set()
        with translated():
            for client in self._nodes().masters():
                for key in client.scan_iter(match=EVERY_USE_KEY, count=_PER_STEP, _type="hash"):
                    tenant = parse_use_key(key)
                    if tenant is not None:
                        found.add(tenant)
        return found

    def _script(self, tenant: bytes, script: Script, arguments: Sequence[str | bytes | int]) -> Any:
        key = use_key(tenant)
        return self._run(tenant, lambda client: run_script(client, script, key, arguments))

    def _run(self, tenant: bytes, call: Callable[[valkey.Valkey], Any]) -> Any:
        # Any: what a server answers, looked at where it is used.
        def checked_first(client: valkey.Valkey) -> Any:
            if not self._vouched and client not in self._checked:
                check_never_evicts(client)
                self._checked.add(client)
            return call(client)

        return run_on_node(self._nodes(), use_key(tenant), checked_first)

    def _nodes(self) -> Nodes:
        if self._opened is None:
            with self._opening, translated():
                if self._opened is None:
                    self._opened = self._kind(self._url, timeout_s=self._timeout_s)
        return self._opened


def _checked(answer: Any, *, of: int) -> list[Any]:
    if not isinstance(answer, list) or len(answer) != of:
        raise _nonsense()
    return answer


def _nonsense() -> BackendDataError:
    return BackendDataError("Valkey answered in another form than was asked for.")


def _reading(names: Sequence[EntryName]) -> Callable[[valkey.Valkey], Any]:
    keys = [entry_key(name) for name in names]
    return lambda client: client.mget(keys)


def _finding(names: Sequence[EntryName]) -> Callable[[valkey.Valkey], list[Any]]:
    def find(client: valkey.Valkey) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.exists(entry_key(name))
        return run_pipeline(pipeline)

    return find


def _by_tenant(names: Sequence[EntryName]) -> dict[bytes, list[int]]:
    places: dict[bytes, list[int]] = {}
    for at, name in enumerate(names):
        places.setdefault(name.tenant, []).append(at)
    return places


def _parts(places: Sequence[int], limit: int) -> Iterable[Sequence[int]]:
    return (places[at : at + limit] for at in range(0, len(places), limit))
