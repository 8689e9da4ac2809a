"""The filesystem backend under a sealed store: what a child does to it, and what must hold after.

Of every block the content follows from its name and a version, so that whatever opens can be
checked; blocks have two parts, and the room is small, so that most saves drop something.
"""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attacks.crash.journal import Journal
from attacks.crash.scopes import CONVERSATIONS, TENANTS, find_owner, open_with_any_root
from kvward.blocks.layout import BlockLayout
from kvward.events import EventCounter
from kvward.scope.derive import derive_block_name
from kvward.scope.keyring import KeyLifetimes, Keyring
from kvward.seal import OVERHEAD_BYTES
from kvward.store import SealedStore
from kvward.store.backend import Bucket, Entry, EntryName, Room
from kvward.store.backends.filesystem import Durability, FilesystemBackend
from kvward.store.sealed import StoreLimits

LAYOUT = BlockLayout(
    order="layer,plane,token,head,channel",
    dtype="float16",
    block_tokens=16,
    num_planes=2,
    num_kv_heads=2,
    head_dim=32,
    tensor_ranks=2,
    layers_of_stage=(1,),
    num_kv_groups=1,
)
_PART_BYTES = LAYOUT.block_bytes // 2 + OVERHEAD_BYTES
ROOM = Room(capacity_bytes=40 * _PART_BYTES + 100, share_bytes=10 * _PART_BYTES + 50)
LIFETIMES = KeyLifetimes(cache_s=600, request_s=600, max_age_s=100_000)
BLOCKS = 8
_VERSIONS = 4


class InPlaceBackend(FilesystemBackend):
    """A bad one: writes where the entry is found, and lets it be found from its first bytes on."""

    def put_many(self, entries: list[Entry]) -> list[bool]:  # type: ignore[override]
        """Keep entries, torn ones included."""
        kept = []
        with self._index.batch():
            for entry in entries:
                path = self._path(entry.name)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                admitted, dropped = self._index.admit(
                    entry.name,
                    len(entry.data),
                    expires_unix_s=entry.expires_unix_s,
                    now_unix_s=self._now(),
                )
                for name in dropped:
                    self._path(name).unlink(missing_ok=True)
                if admitted:
                    path.unlink(missing_ok=True)
                    for end in range(256, len(entry.data) + 256, 256):
                        piece = Entry(
                            name=entry.name,
                            data=memoryview(entry.data)[end - 256 : end],
                            expires_unix_s=entry.expires_unix_s,
                        )
                        self._append(path, piece)
                kept.append(admitted)
        return kept

    def _append(self, path: Path, piece: Entry) -> None:
        with path.open("ab", buffering=0) as file:
            file.write(piece.data)
        os.utime(path, (piece.expires_unix_s, piece.expires_unix_s))


class ForgetfulBackend(FilesystemBackend):
    """A bad one: never makes index and files agree again."""

    def reconcile(self) -> None:
        """Do nothing."""


BACKENDS: dict[str, type[FilesystemBackend]] = {
    "filesystem": FilesystemBackend,
    "in-place": InPlaceBackend,
    "forgetful": ForgetfulBackend,
}


def content(chain_hash: bytes, version: int) -> bytes:
    """Return the bytes of a block: its version, then what follows from name and version."""
    start = bytes([version])
    return start + hashlib.shake_256(chain_hash + start).digest(LAYOUT.block_bytes - 1)


def chain_hashes(tenant: str, conversation: bytes) -> list[bytes]:
    """Return the names of a conversation's blocks."""
    return [
        hashlib.sha256(tenant.encode() + conversation + bytes([number])).digest()
        for number in range(BLOCKS)
    ]


def open_store(
    backend: FilesystemBackend, keyring: Keyring, *, events: EventCounter, max_age_s: int
) -> SealedStore:
    """Return a sealed store over a backend."""
    return SealedStore(
        backend,
        keyring,
        layout=LAYOUT,
        limits=StoreLimits(max_age_s=max_age_s, clock_skew_s=0, retry_after_s=0.001),
        events=events,
    )


class StoreWork:
    """What a child does, one random operation at a time.

    Args:
        folder: Shared by all children.
        kind: Of `BACKENDS`.
        durability: Of what is written.
    """

    def __init__(
        self, folder: Path, kind: str, durability: Durability, rng: random.Random, journal: Journal
    ) -> None:
        self._rng = rng
        self._journal = journal
        self._events = EventCounter()
        self._keyring = open_with_any_root(folder / "keyring.db", LIFETIMES)
        self._backend = BACKENDS[kind](folder / "store", ROOM, durability=durability)
        self._stores = [
            open_store(self._backend, self._keyring, events=self._events, max_age_s=age)
            for age in (1000, 1000, 1000, 1)
        ]

    def step(self) -> None:
        """Do one operation."""
        rng = self._rng
        tenant = rng.choice((*TENANTS, TENANTS[0]))
        conversation = rng.choice(CONVERSATIONS)
        hashes = rng.sample(chain_hashes(tenant, conversation), rng.randint(1, 4))
        kind = rng.choices(("save", "load", "delete", "purge", "sweep"), (70, 10, 10, 6, 4))[0]
        if kind == "sweep":
            self._backend.sweep()
            return
        owner = find_owner(self._keyring, tenant, conversation)
        if kind == "save":
            blocks = [content(h, rng.randrange(_VERSIONS)) for h in hashes]
            parts = rng.choice((LAYOUT.parts, LAYOUT.parts, LAYOUT.parts[:1]))
            size = sum(LAYOUT.part_bytes(part) for part in parts)
            scoped = rng.choice(self._stores).scope(owner)
            scoped.save(hashes, [block[:size] for block in blocks], parts=parts)
        elif kind == "load":
            staging = memoryview(bytearray(len(hashes) * LAYOUT.block_bytes))
            self._stores[0].scope(owner).load(hashes, staging, parts=LAYOUT.parts)
        else:
            keys = self._keyring.writing_keys(owner)
            if kind == "purge":
                scope = rng.choice((keys.scope_bucket, None))
                self._backend.purge(Bucket(tenant=keys.tenant_bucket, scope=scope))
            else:
                self._backend.delete_many(
                    [
                        EntryName(
                            tenant=keys.tenant_bucket,
                            scope=keys.scope_bucket,
                            name=derive_block_name(keys.name_key, h, *part.to_fields()),
                        )
                        for h in hashes
                        for part in LAYOUT.parts
                    ]
                )

    def close(self) -> None:
        """Say what went wrong, and close."""
        self._journal.write(
            events={
                name: count
                for name, count in self._events.counts().items()
                if name.startswith(("store.refused", "store.unavailable"))
            }
        )
        self._backend.close()
        self._keyring.database.close()


class StoreCheck:
    """A reader that lives through the end of a writer, and everything that must hold afterwards.

    Args:
        folder: The children's.
        kind: Of `BACKENDS`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._keyring = open_with_any_root(folder / "keyring.db", LIFETIMES)
        self._survivor = BACKENDS[kind](folder / "store", ROOM)

    def problems(self, found: Counter[str]) -> Iterator[str]:
        """Yield everything that is not as it should be; count what was met."""
        try:
            yield from self._read_all(self._survivor, "survivor", found)
            before = self._count_files()
            fresh = BACKENDS[self._kind](self._folder / "store", ROOM)
            found["files that reconcile dropped"] += before - self._count_files()
            try:
                yield from self._account(fresh, found)
                yield from self._read_all(fresh, "fresh", found)
                # What was dropped or refused while reading is accounted for, too.
                yield from self._account(fresh, found)
            finally:
                fresh.close()
        finally:
            self._survivor.close()
            self._keyring.database.close()

    def _count_files(self) -> int:
        return sum(path.is_file() for path in (self._folder / "store" / "entries").rglob("*"))

    def _read_all(self, backend: FilesystemBackend, who: str, found: Counter[str]) -> Iterator[str]:
        events = EventCounter()
        store = open_store(backend, self._keyring, events=events, max_age_s=1000)
        for tenant in TENANTS:
            for conversation in CONVERSATIONS:
                hashes = chain_hashes(tenant, conversation)
                scoped = store.scope(find_owner(self._keyring, tenant, conversation))
                for parts in (LAYOUT.parts, LAYOUT.parts[:1]):
                    size = sum(LAYOUT.part_bytes(part) for part in parts)
                    staging = memoryview(bytearray(BLOCKS * size))
                    loaded = scoped.load(hashes, staging, parts=parts)
                    for number, (chain_hash, there) in enumerate(zip(hashes, loaded, strict=True)):
                        data = bytes(staging[number * size : (number + 1) * size])
                        if there and not _was_saved(chain_hash, data, len(parts)):
                            yield f"{who}: a part opened with bytes that were never saved"
                        if not there and any(data):
                            yield f"{who}: memory of a block that was not loaded is not zero"
                        found["parts opened"] += there * len(parts)
        for name in events.counts():
            if name.startswith(("store.refused:", "store.unavailable:")):
                yield f"{who}: {name}"

    def _account(self, backend: FilesystemBackend, found: Counter[str]) -> Iterator[str]:
        store = self._folder / "store"
        # Before the files are counted: asking sweeps what is past its time.
        told = {
            tenant: (usage.num_entries, usage.num_bytes)
            for tenant, usage in backend.stats().items()
        }
        files: dict[bytes, list[int]] = {}
        for path in (store / "entries").rglob("*"):
            if path.is_file():
                tenant = bytes.fromhex(path.relative_to(store / "entries").parts[0])
                files.setdefault(tenant, []).append(path.stat().st_size)
        there = {tenant: (len(sizes), sum(sizes)) for tenant, sizes in files.items()}
        if told != there:
            yield "index and files disagree"
        total = sum(num_bytes for _, num_bytes in there.values())
        found["bytes kept"] += total
        if total > ROOM.capacity_bytes:
            yield "more bytes are kept than there is room"
        found["files left in tmp"] = max(
            found["files left in tmp"], sum(1 for _ in (store / "tmp").iterdir())
        )
        yield from self._recount(store / "index.db")

    def _recount(self, path: Path) -> Iterator[str]:
        """Hold the accounts of the index against its own rows."""
        database = sqlite3.connect(path, timeout=10)
        try:
            rows = database.execute(
                "SELECT tenant, COUNT(*), SUM(num_bytes * protected), "
                "SUM(num_bytes * (1 - protected)) FROM entries GROUP BY tenant ORDER BY tenant"
            ).fetchall()
            accounts = database.execute(
                "SELECT tenant, num_entries, protected_bytes, borrowed_bytes FROM tenants "
                "WHERE num_entries != 0 OR protected_bytes != 0 OR borrowed_bytes != 0 "
                "ORDER BY tenant"
            ).fetchall()
            (shares,) = database.execute("SELECT COUNT(*) FROM tenants WHERE has_share").fetchone()
        finally:
            database.close()
        if rows != accounts:
            yield "an account of the index is not the sum of its rows"
        if any(protected > ROOM.share_bytes for _, _, protected, _ in accounts):
            yield "a tenant has more protected bytes than its share"
        if shares * ROOM.share_bytes > ROOM.capacity_bytes:
            yield "more shares are promised than there is room"


def _was_saved(chain_hash: bytes, data: bytes, num_parts: int) -> bool:
    """Tell whether every part has the bytes of some version; each may be of its own."""
    size = len(data) // num_parts
    saved = [content(chain_hash, version) for version in range(_VERSIONS)]
    return all(
        any(data[at : at + size] == block[at : at + size] for block in saved)
        for at in range(0, len(data), size)
    )
