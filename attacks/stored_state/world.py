"""A keyring, a store, and sealed blocks of several tenants, conversations, models and layouts."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvward.blocks.chain import derive_chain_link, derive_chain_root
from kvward.blocks.layout import BlockLayout
from kvward.events import EventCounter
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.scope.derive import derive_block_name
from kvward.scope.keyring import (
    CachedKeys,
    KeyLifetimes,
    Keyring,
    LocalRoot,
    SqliteDatabase,
    rotate,
)
from kvward.scope.owner import ScopeOwner
from kvward.store import (
    Bucket,
    BucketUsage,
    Capabilities,
    Entry,
    EntryName,
    Room,
    SealedStore,
    StoreLimits,
)
from kvward.store.backend import Buffer
from kvward.store.backends.filesystem import FilesystemBackend
from kvward.terms import SharingLevel

TENANTS, CONVERSATIONS, MODELS, POSITIONS = 3, 3, 2, 4
MAX_AGE_S = 1000
LIFETIMES = KeyLifetimes(cache_s=10, request_s=10, max_age_s=MAX_AGE_S)
WHOLE = BlockLayout(
    order="layer,plane,token,head,channel", dtype="float16", block_tokens=4, num_planes=2,
    num_kv_heads=2, head_dim=8, tensor_ranks=1, layers_of_stage=(4,), num_kv_groups=1,
)  # fmt: skip
TURNED = replace(WHOLE, order="plane,layer,token,head,channel")
CUT = replace(WHOLE, tensor_ranks=2, layers_of_stage=(2, 2))
LAYOUTS = {"whole": WHOLE, "turned": TURNED, "cut": CUT}
KEPT_LAYOUTS = ("whole", "cut")


class OpenShelf:
    """Implements `Backend` as its owner would like it: keeps all, forgets nothing, expires nothing.

    `content` is there for anybody to change.
    """

    capabilities = Capabilities(
        protects_shares=False,
        shared_between_processes=False,
        durable=False,
        expires_by_itself=False,
    )

    def __init__(self) -> None:
        self.content: dict[EntryName, bytes] = {}

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        return [self.content.get(name) for name in names]

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        for entry in entries:
            self.content[entry.name] = bytes(entry.data)
        return [True] * len(entries)

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        return [name in self.content for name in names]

    def delete_many(self, names: Sequence[EntryName]) -> None:
        for name in names:
            self.content.pop(name, None)

    def purge(self, bucket: Bucket) -> int:
        return 0  # it says so, and does not

    def stats(self) -> Mapping[bytes, BucketUsage]:
        return {}


class OpenFolder(FilesystemBackend):
    """A file store whose files anybody may change behind its back."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Room(capacity_bytes=1 << 30, share_bytes=1 << 28))
        self.content = _Files(self)

    def path(self, name: EntryName) -> Path:
        """Return where an entry lies."""
        return self._path(name)


class _Files(MutableMapping[EntryName, bytes]):
    def __init__(self, backend: OpenFolder) -> None:
        self._backend = backend

    def __getitem__(self, name: EntryName) -> bytes:
        try:
            return self._backend.path(name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __setitem__(self, name: EntryName, data: bytes) -> None:
        path = self._backend.path(name)
        path.write_bytes(data)
        os.utime(path, (2**33, 2**33))

    def __delitem__(self, name: EntryName) -> None:
        self._backend.path(name).unlink()

    def __iter__(self) -> Iterator[EntryName]:
        for tenant in self._backend.stats():
            yield from self._backend._index.names(Bucket(tenant=tenant, scope=None))

    def __len__(self) -> int:
        return sum(1 for _ in self)


Shelf = OpenShelf | OpenFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One block that was kept: whose, where in which prompt, and what it holds."""

    tenant: int
    conversation: int
    model: int
    position: int
    layout: str
    owner: ScopeOwner
    chain_hash: bytes
    plain: bytes
    names: tuple[EntryName, ...]
    epoch: int


class World:
    """Everything that an honest deployment has stored.

    Args:
        folder: For the keyring.
        shelf: Where the sealed blocks lie.
    """

    def __init__(self, folder: Path, shelf: Shelf, *, seed: int) -> None:
        self.now = float(int(time.time()))
        self.shelf = shelf
        self.random = random.Random(seed)
        self.events = EventCounter()
        self._database = SqliteDatabase(folder / "keyring.db")
        self.keyring = Keyring(
            self._database,
            LocalRoot(RootKey(os.urandom(32))),
            deployment="attacked",
            lifetimes=LIFETIMES,
            now_unix_s=lambda: self.now,
        )
        self.items: list[Item] = []
        self._stores = {name: self._new_store(layout) for name, layout in LAYOUTS.items()}
        self._fill(positions=range(POSITIONS - 1))
        # From here on the first tenant writes under its next epoch and still reads the one before.
        rotate(self.keyring, tenant_name(0), retire_old=False)
        self._fill(positions=range(POSITIONS - 1, POSITIONS))
        self.items = [replace(i, owner=self.owner(i.tenant, i.conversation)) for i in self.items]
        self.stored = dict(shelf.content)

    def close(self) -> None:
        """Close the keyring."""
        self._database.close()
        if isinstance(self.shelf, OpenFolder):
            self.shelf.close()

    def store(self, layout: str) -> SealedStore:
        """Return the store for blocks of a layout, with warm keys."""
        return self._stores[layout]

    def fresh_store(self, layout: str) -> SealedStore:
        """Return a store that remembers no key."""
        return self._new_store(LAYOUTS[layout])

    def owner(self, tenant: int, conversation: int) -> ScopeOwner:
        """Return a scope and its owner as the gateway would issue them now."""
        name = tenant_name(tenant)
        issuer = ScopeIssuer(
            self.keyring, self.keyring.token_key, epochs=self.keyring, deployment="attacked"
        )
        subject = issuer.named_subject(name, f"conversation-{conversation}")
        scope: Scope = issuer.current(tenant=name, level=SharingLevel.CONVERSATION, subject=subject)
        return ScopeOwner(
            tenant_id=self.keyring.tenant_id(name),
            scope_id=issuer.scope_id(scope),
            epoch=scope.epoch,
        )

    def names(self, owner: ScopeOwner, chain_hash: bytes, layout: str) -> tuple[EntryName, ...]:
        """Return where the parts of a block lie that is written now."""
        keys = self.keyring.writing_keys(owner)
        return tuple(
            EntryName(
                tenant=keys.tenant_bucket,
                scope=keys.scope_bucket,
                name=derive_block_name(keys.name_key, chain_hash, *part.to_fields()),
            )
            for part in LAYOUTS[layout].parts
        )

    def _new_store(self, layout: BlockLayout) -> SealedStore:
        return SealedStore(
            self.shelf,
            CachedKeys(self.keyring, cache_s=3600),
            layout=layout,
            limits=StoreLimits(max_age_s=MAX_AGE_S, clock_skew_s=5, retry_after_s=0.001),
            events=self.events,
            now_unix_s=lambda: self.now,
        )

    def _fill(self, *, positions: range) -> None:
        for tenant in range(TENANTS):
            for conversation in range(CONVERSATIONS):
                owner = self.owner(tenant, conversation)
                for model in range(MODELS):
                    for layout in KEPT_LAYOUTS:
                        self._keep(tenant, conversation, model, layout, owner, positions)

    def _keep(
        self,
        tenant: int,
        conversation: int,
        model: int,
        layout: str,
        owner: ScopeOwner,
        positions: range,
    ) -> None:
        # Every tenant has the same prompt: what differs is whose it is.
        manifest = hashlib.sha256(f"{model} {layout}".encode()).digest()
        chain = [derive_chain_root(manifest_digest=manifest, scope=None)]
        for position in range(POSITIONS):
            chain.append(derive_chain_link(chain[-1], [position] * 4, extras=()))
        for position in positions:
            chain_hash = chain[position + 1]
            plain = self.random.randbytes(LAYOUTS[layout].block_bytes)
            kept = (
                self._stores[layout]
                .scope(owner)
                .save([chain_hash], [plain], parts=LAYOUTS[layout].parts)
            )
            assert kept == [True]
            self.items.append(
                Item(
                    tenant=tenant,
                    conversation=conversation,
                    model=model,
                    position=position,
                    layout=layout,
                    owner=owner,
                    chain_hash=chain_hash,
                    plain=plain,
                    names=self.names(owner, chain_hash, layout),
                    epoch=owner.epoch,
                )
            )


def tenant_name(tenant: int) -> str:
    """Return the name of a tenant."""
    return f"tenant-{tenant}"


@contextmanager
def built(folder: Path, *, seed: int, files: bool = False) -> Iterator[World]:
    """Build a world and take it down."""
    shelf: Shelf = OpenFolder(folder / "store") if files else OpenShelf()
    world = World(folder, shelf, seed=seed)
    try:
        yield world
    finally:
        world.close()
