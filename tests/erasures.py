"""A second process with warm caches that goes on loading and saving while a scope is erased."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keyrings import ROOT, Place, open_place, owner
from kvward.blocks.layout import BlockLayout
from kvward.errors import OpenError
from kvward.events import EventCounter
from kvward.scope import RootKey, SealKey
from kvward.scope.keyring import CachedKeys, KeyClient, KeyLifetimes, Keyring, LocalRoot
from kvward.scope.owner import ScopeOwner
from kvward.seal import BlockSealer, Lifetime
from kvward.seal.header import parse_unverified_header
from kvward.store import Backend, EntryName, Room, SealedStore, StoreLimits
from kvward.store.backends.filesystem import FilesystemBackend

LAYOUT = BlockLayout(
    order="layer,plane,token,head,channel",
    dtype="int8",
    block_tokens=4,
    num_planes=2,
    num_kv_heads=2,
    head_dim=4,
    tensor_ranks=2,
    layers_of_stage=(1,),
    num_kv_groups=1,
)
ROOM = Room(capacity_bytes=1 << 22, share_bytes=1 << 20)
LIFETIMES = KeyLifetimes(cache_s=1, request_s=1, max_age_s=1000)
HASHES = [hashlib.sha256(b"block %d" % number).digest() for number in range(4)]
LATE = hashlib.sha256(b"late").digest()
_LONGEST_S = 60.0


def open_short_keyring(place: Place, *, root: RootKey = ROOT) -> Keyring:
    """Open a keyring whose caches last a second, by the clock of the machine."""
    database = open_place(place)
    try:
        return Keyring(
            database, LocalRoot(root), deployment="d", lifetimes=LIFETIMES, now_unix_s=time.time
        )
    except BaseException:
        database.close()
        raise


def open_backend(folder: Path) -> FilesystemBackend:
    return FilesystemBackend(folder, ROOM)


def open_store(backend: Backend, keys: KeyClient) -> SealedStore:
    return SealedStore(
        backend,
        keys,
        layout=LAYOUT,
        limits=StoreLimits(max_age_s=LIFETIMES.max_age_s, clock_skew_s=5, retry_after_s=0.01),
        events=EventCounter(),
    )


def content(chain_hash: bytes) -> bytes:
    return hashlib.shake_256(chain_hash).digest(LAYOUT.block_bytes)


def save(store: SealedStore, whose: ScopeOwner, hashes: list[bytes] = HASHES) -> list[bool]:
    blocks = [content(chain_hash) for chain_hash in hashes]
    return store.scope(whose).save(hashes, blocks, parts=LAYOUT.parts)


def load(store: SealedStore, whose: ScopeOwner, hashes: list[bytes] = HASHES) -> list[bool]:
    """Load, and check the bytes of whatever is there."""
    staging = memoryview(bytearray(len(hashes) * LAYOUT.block_bytes))
    loaded = store.scope(whose).load(hashes, staging, parts=LAYOUT.parts)
    for number, (chain_hash, there) in enumerate(zip(hashes, loaded, strict=True)):
        data = bytes(staging[number * LAYOUT.block_bytes : (number + 1) * LAYOUT.block_bytes])
        assert data == (content(chain_hash) if there else bytes(LAYOUT.block_bytes))
    return loaded


def keep_using(
    place: Place, folder: str, owners: dict[str, ScopeOwner], queue: Any, barrier: Any, stop: Any
) -> None:
    """Load and save in a loop, and tell when the last call began that hit or wrote each scope."""
    keyring = open_short_keyring(place)
    keys = CachedKeys(keyring, cache_s=LIFETIMES.cache_s)
    backend = open_backend(Path(folder))
    store = open_store(backend, keys)
    for whose in owners.values():
        assert all(load(store, whose))  # warms the cache
    barrier.wait()
    last: dict[str, dict[str, float]] = {name: {"hit": 0.0, "kept": 0.0} for name in owners}
    counts = {name: {"hit": 0, "kept": 0} for name in owners}
    deadline = time.monotonic() + _LONGEST_S
    while not stop.is_set() and time.monotonic() < deadline:
        for name, whose in owners.items():
            # When a call began: it may end a moment after the bound.
            began = time.time()
            if any(load(store, whose)):
                last[name]["hit"] = began
                counts[name]["hit"] += 1
            began = time.time()
            if any(save(store, whose, [LATE])):
                last[name]["kept"] = began
                counts[name]["kept"] += 1
    queue.put((last, counts))
    backend.close()
    keyring.database.close()


def iter_raw(folder: Path) -> Iterator[tuple[EntryName, bytes]]:
    """Yield every entry that lies in a store's folder, whatever its index says."""
    entries = folder / "entries"
    for path in sorted(entries.glob("*/*/*")):
        tenant, scope, name = (bytes.fromhex(part) for part in path.relative_to(entries).parts)
        yield EntryName(tenant=tenant, scope=scope, name=name), path.read_bytes()


def remaining_keys(keyring: Keyring) -> list[tuple[SealKey, int]]:
    """Return every seal key that is in the keyring, with its epoch."""
    with keyring.database.transaction() as transaction:
        rows = transaction.execute("SELECT DISTINCT scope_id, tenant_id FROM scope_keys")
    return [
        (keys.seal_key, keys.epoch)
        for scope_id, tenant_id in rows
        for keys in keyring.reading_keys(
            ScopeOwner(tenant_id=bytes(tenant_id), scope_id=bytes(scope_id), epoch=2**62)  # type: ignore[arg-type]
        )
    ]


def opens(sealed: bytes, name: EntryName, keys: list[tuple[SealKey, int]]) -> bool:
    """Tell whether any key opens an entry, at any age, in the place where it lies."""
    claimed = parse_unverified_header(sealed)
    for key, epoch in keys:
        for epoch_tried in {epoch, claimed.epoch}:
            out = memoryview(bytearray(claimed.plain_bytes))
            try:
                BlockSealer(key, epoch=epoch_tried).open_into(
                    sealed,
                    out,
                    name=name.tenant + name.scope + name.name,
                    layout_digest=LAYOUT.digest,
                    lifetime=Lifetime(oldest_unix_s=0, newest_unix_s=2**62),
                )
            except OpenError:
                continue
            return True
    return False


def find_owner(keyring: Keyring, tenant: str, conversation: bytes) -> ScopeOwner:
    return owner(keyring, tenant, conversation)
