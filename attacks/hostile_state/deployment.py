"""A keyring with its issuer and its stores, as a deployment composes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from kvward.blocks.layout import BlockLayout, Part
from kvward.events import EventCounter, EventSink
from kvward.scope import RootKey, ScopeIssuer
from kvward.scope.keyring import KeyLifetimes, Keyring, LocalRoot, SqliteDatabase
from kvward.scope.owner import ScopeOwner, verify_owner
from kvward.store.backend import (
    Backend,
    Bucket,
    BucketUsage,
    Buffer,
    Capabilities,
    Entry,
    EntryName,
)
from kvward.store.sealed import ScopedStore, SealedStore, StoreLimits
from kvward.terms import SharingLevel

LIFETIMES = KeyLifetimes(cache_s=5, request_s=3, max_age_s=1000)
LIMITS = StoreLimits(max_age_s=1000, clock_skew_s=2, retry_after_s=1.0)
SEALED_UNIX_S = 1_000_000


class Clock:
    """A clock that an attacker of clocks may set."""

    def __init__(self) -> None:
        self.now_unix_s = float(SEALED_UNIX_S)

    def __call__(self) -> float:
        """Return the time."""
        return self.now_unix_s


class Deployment:
    """One installation.

    Args:
        path: Of its keyring.
        root: Its root key.
        clock: Of keyring and stores.
    """

    def __init__(self, path: Path, root: RootKey, clock: Clock) -> None:
        self._clock = clock
        self.keyring = Keyring(
            SqliteDatabase(path),
            LocalRoot(root),
            deployment="d",
            lifetimes=LIFETIMES,
            now_unix_s=clock,
        )
        self._issuer = ScopeIssuer(
            self.keyring, self.keyring.token_key, epochs=self.keyring, deployment="d"
        )

    def owner(self, tenant: str, conversation: int) -> ScopeOwner:
        """Return a scope as an adapter learns of it now: from a token and its owner tag."""
        scope = self._issuer.current(
            tenant=tenant,
            level=SharingLevel.CONVERSATION,
            subject=self._issuer.named_subject(tenant, f"conversation {conversation}"),
        )
        token = self._issuer.token(scope)
        tag = self._issuer.owner_tag(scope, token=token)
        return verify_owner(tag, token=token, token_key=self._issuer.token_key)

    def store(
        self,
        backend: Backend,
        layout: BlockLayout,
        events: EventSink | None = None,
        executor: Executor | None = None,
    ) -> SealedStore:
        """Return a store of this deployment over a backend."""
        return SealedStore(
            backend,
            self.keyring,
            layout=layout,
            limits=LIMITS,
            events=events or EventCounter(),
            executor=executor,
            now_unix_s=self._clock,
        )


class Recorder:
    """Implements `Backend`: hands what it is given to the attacker and keeps nothing."""

    capabilities = Capabilities(
        protects_shares=False,
        shared_between_processes=False,
        durable=False,
        expires_by_itself=False,
    )

    def __init__(self) -> None:
        self._taken: list[tuple[EntryName, bytes]] = []

    def save(
        self,
        store: ScopedStore,
        chain_hashes: Sequence[bytes],
        blocks: Sequence[bytes],
        parts: Sequence[Part],
    ) -> list[tuple[EntryName, bytes]]:
        """Have a store save blocks; return names and sealed bytes of all their parts, in order."""
        self._taken = []
        store.save(chain_hashes, blocks, parts=parts)
        return self._taken

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        """Record entries."""
        self._taken += [(entry.name, bytes(entry.data)) for entry in entries]
        return [True] * len(entries)

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        """Return nothing."""
        return [None] * len(names)

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        """Tell that nothing is there."""
        return [False] * len(names)

    def delete_many(self, names: Sequence[EntryName]) -> None:
        """Forget nothing."""

    def purge(self, bucket: Bucket) -> int:
        """Forget nothing."""
        return 0

    def stats(self) -> Mapping[bytes, BucketUsage]:
        """Return nothing."""
        return {}
