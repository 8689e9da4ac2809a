"""Sealed against unsealed, on every backend; and what keys and names cost.

Each backend keeps and returns the same blocks twice in turn: plain bytes through its own methods,
and sealed through a `SealedStore` (keys, names, sealing, opening, staging). The fastest round of
each counts. Servers run on this machine, so a network's time is missing from both sides.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from figures import Figure, publish

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from kvward.blocks.chain import derive_chain_link
from kvward.blocks.layout import BlockLayout
from kvward.events import EventCounter
from kvward.scope import RootKey
from kvward.scope.keyring import CachedKeys, KeyLifetimes, Keyring, LocalRoot, SqliteDatabase
from kvward.scope.owner import ScopeOwner
from kvward.store import Backend, Entry, EntryName, Room, SealedStore, StoreLimits
from kvward.store.backends.filesystem import Durability, FilesystemBackend
from kvward.store.backends.memory import MemoryBackend

BLOCKS, ROUNDS = 32, 9
LAYOUT = BlockLayout(
    order="layer,plane,token,head,channel", dtype="float16", block_tokens=16, num_planes=2,
    num_kv_heads=8, head_dim=64, tensor_ranks=1, layers_of_stage=(32,), num_kv_groups=1,
)  # fmt: skip
SIZE = LAYOUT.block_bytes
ROOM = Room(capacity_bytes=2 << 30, share_bytes=512 << 20)
LIFETIMES = KeyLifetimes(cache_s=60, request_s=60, max_age_s=3600)
BYTES = BLOCKS * SIZE


@contextmanager
def backends(folder: Path) -> Iterator[dict[str, Backend]]:
    from kvward.store.backends.s3 import S3Backend
    from kvward.store.backends.s3_bucket import connect_s3
    from kvward.store.backends.valkey import ValkeyBackend
    from services import S3Server, ValkeyCluster, ValkeyServer

    with ExitStack() as stack:
        valkey = stack.enter_context(ValkeyServer())
        cluster = stack.enter_context(ValkeyCluster())
        s3 = stack.enter_context(S3Server())
        bucket = connect_s3(
            s3.bucket, region=s3.region, endpoint=s3.endpoint, access_key_id=s3.access_key_id,
            secret_access_key=s3.secret_access_key, timeout_s=30.0,
        )  # fmt: skip
        yield {
            "memory": MemoryBackend(ROOM),
            "filesystem": FilesystemBackend(folder / "none", ROOM),
            "filesystem, data flushed": FilesystemBackend(
                folder / "data", ROOM, durability=Durability.DATA
            ),
            "valkey": ValkeyBackend(valkey.url, ROOM, timeout_s=10.0),
            "valkey cluster": ValkeyBackend(cluster.url, ROOM, cluster=True, timeout_s=10.0),
            "s3": S3Backend(bucket, ROOM),
        }


def fastest(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def compare(label: str, backend: Backend, store: SealedStore, owner: ScopeOwner) -> list[Figure]:
    blocks = [memoryview(bytearray(os.urandom(SIZE))) for _ in range(BLOCKS)]
    hashes = [os.urandom(32) for _ in blocks]
    staging = memoryview(bytearray(BYTES))
    plain_staging = memoryview(bytearray(BYTES))
    scope = store.scope(owner)
    bucket, expires = os.urandom(16), int(time.time()) + 3600
    entries = [
        Entry(
            name=EntryName(tenant=bucket, scope=bucket, name=chain_hash),
            data=block,
            expires_unix_s=expires,
        )
        for chain_hash, block in zip(hashes, blocks, strict=True)
    ]
    names = [entry.name for entry in entries]

    def get_plain() -> None:
        for place, data in enumerate(backend.get_many(names)):
            assert data is not None
            plain_staging[place * SIZE : (place + 1) * SIZE] = data

    def get_sealed() -> None:
        assert all(scope.load(hashes, staging, parts=LAYOUT.parts))

    best = fastest(
        {
            "put": lambda: backend.put_many(entries),
            "sealed put": lambda: scope.save(hashes, blocks, parts=LAYOUT.parts),
            "get": get_plain,
            "sealed get": get_sealed,
        }
    )
    return [
        Figure(
            name=f"{verb} {label}, sealed against unsealed",
            value=BYTES / best[f"sealed {verb}"] / 1e9,
            unit="GB/s",
            baseline=BYTES / best[verb] / 1e9,
        )
        for verb in ("put", "get")
    ]


def costs(keyring: Keyring, owner: ScopeOwner) -> list[Figure]:
    cached = CachedKeys(keyring, cache_s=60)
    cached.writing_keys(owner)
    tokens, parent = list(range(16)), bytes(32)
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "link of the block chain": (lambda: derive_chain_link(parent, tokens, extras=()), 2000),
        "keys of a scope, remembered": (lambda: cached.reading_keys(owner), 2000),
        "keys of a scope, from SQLite": (lambda: keyring.reading_keys(owner), 100),
        "keys of a scope to write, from SQLite": (lambda: keyring.writing_keys(owner), 50),
    }
    figures = []
    for name, (call, turns) in calls.items():

        def many(call: Callable[[], object] = call, turns: int = turns) -> None:
            for _ in range(turns):
                call()

        seconds = fastest({name: many})[name] / turns
        figures.append(Figure(name=name, value=seconds * 1e6, unit="µs"))
    return figures


def main() -> int:
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        database = SqliteDatabase(folder / "keyring.db")
        keyring = Keyring(
            database, LocalRoot(RootKey(os.urandom(32))), deployment="bench", lifetimes=LIFETIMES,
            now_unix_s=time.time,
        )  # fmt: skip
        keyring.tenant_key("a")
        owner = ScopeOwner(tenant_id=keyring.tenant_id("a"), scope_id=os.urandom(24), epoch=0)
        figures = []
        with backends(folder) as found:
            for label, backend in found.items():
                events = EventCounter()
                store = SealedStore(
                    backend,
                    CachedKeys(keyring, cache_s=LIFETIMES.cache_s),
                    layout=LAYOUT,
                    limits=StoreLimits(max_age_s=3600, clock_skew_s=5, retry_after_s=1.0),
                    events=events,
                    executor=pool,
                )
                figures += compare(label, backend, store, owner)
                assert not events.counts(), events.counts()
        figures += costs(keyring, owner)
        database.close()
    return publish("store", figures)


if __name__ == "__main__":
    sys.exit(main())
