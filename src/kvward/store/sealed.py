"""The one way to stored state: under a scope, sealed on the way in, opened on the way out.

There is no raw read. Whatever does not open is dropped, counted inside by its reason, and looks
like a miss outside; so does a store or a keyring that does not answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from kvward.blocks.layout import BlockLayout, Part
from kvward.errors import BackendDataError, EpochRetiredError, KeyringError, StoreError, UsageError
from kvward.events import EventSink
from kvward.scope.derive import derive_block_name
from kvward.scope.keyring import KeyClient, ScopeKeys
from kvward.scope.owner import ScopeOwner
from kvward.seal import (
    OVERHEAD_BYTES,
    BlockSealer,
    Lifetime,
    OpenJob,
    SealJob,
    open_many,
    seal_many,
)
from kvward.seal.xaes import NONCE_BYTES, Buffer
from kvward.store.backend import Backend, Entry, EntryName
from kvward.store.outage import Outages

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Bounds of a sealed store.

    Attributes:
        max_age_s: Blocks older than that are not served; the keyring's.
        clock_skew_s: How far the clocks of two replicas may differ.
        retry_after_s: How long a tenant's requests go without a store that did not answer.
    """

    max_age_s: int
    clock_skew_s: int
    retry_after_s: float

    def __post_init__(self) -> None:
        if self.max_age_s < 1 or self.clock_skew_s < 0 or self.retry_after_s <= 0:
            raise UsageError("Limits of a store are positive.")


class SealedStore:
    """Sealed state of every scope, in one backend. May be used from several threads.

    Args:
        backend: Untrusted.
        keys: Gives scopes their keys.
        layout: Of every block that is kept.
        events: Takes "store.refused", "store.incomplete", "store.unavailable" and
            "store.not-kept", each with a reason; pseudonyms and counts only.
        executor: Threads for large batches; None works in the caller's.
        now_unix_s: Clock of creation and age.
    """

    def __init__(
        self,
        backend: Backend,
        keys: KeyClient,
        *,
        layout: BlockLayout,
        limits: StoreLimits,
        events: EventSink,
        executor: Executor | None = None,
        now_unix_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = _Shared(
            backend=backend,
            keys=keys,
            layout=layout,
            limits=limits,
            events=events,
            executor=executor,
            now_unix_s=now_unix_s,
            outages=Outages(retry_after_s=limits.retry_after_s, monotonic_s=monotonic_s),
        )

    def scope(self, owner: ScopeOwner) -> ScopedStore:
        """Return the store as one scope sees it: nothing of any other.

        Args:
            owner: From `verify_owner`. [verified]
        """
        return ScopedStore(self._shared, owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    backend: Backend
    keys: KeyClient
    layout: BlockLayout
    limits: StoreLimits
    events: EventSink
    executor: Executor | None
    now_unix_s: Callable[[], float]
    outages: Outages
    scratch: threading.local = field(default_factory=threading.local)

    def sealing_memory(self, num_bytes: int) -> memoryview:
        """Return memory of this thread for sealed bytes; it is used again by the next call."""
        memory: bytearray = getattr(self.scratch, "memory", bytearray())
        if len(memory) < num_bytes:
            memory = self.scratch.memory = bytearray(num_bytes)
        return memoryview(memory)[:num_bytes]


class ScopedStore:
    """What one scope has stored. Made by `SealedStore.scope`.

    Blocks are named by their chain hash: 32 bytes that commit to the model and to every token
    before. No method raises for a store or keyring that fails: that is a miss, and counted.
    """

    def __init__(self, shared: _Shared, owner: ScopeOwner) -> None:
        self._shared = shared
        self._owner = owner

    def contains(self, chain_hashes: Sequence[bytes]) -> list[bool]:
        """Tell which blocks seem to be there with all their parts. A claim of the backend's."""
        found = [False] * len(chain_hashes)

        def look(keys: ScopeKeys, missing: list[int]) -> None:
            parts = self._shared.layout.parts
            names = [
                self._name(keys, chain_hashes[number], part) for number in missing for part in parts
            ]
            present = _complete(self._shared.backend.contains_many(names), of=len(names))
            for place, number in enumerate(missing):
                found[number] = all(present[place * len(parts) : (place + 1) * len(parts)])

        self._look_in_every_epoch(look, found)
        return found

    def load(
        self, chain_hashes: Sequence[bytes], staging: memoryview, *, parts: Sequence[Part]
    ) -> list[bool]:
        """Open blocks into private memory.

        Args:
            chain_hashes: Which, 32 bytes each.
            staging: Writable and contiguous, for each block the bytes of its `parts` in their
                order. Memory of the caller's alone, never an engine's pages: copy from it what
                was loaded.
            parts: What each block consists of for this caller: all parts of the layout, or those
                of one rank. Whether the other ranks have theirs, `contains` tells.
        Returns:
            For each block whether all of it lies in `staging`. Where False, its bytes are zero.
        Raises:
            ValueError: `staging` has the wrong length.
        """
        shared = self._shared
        staging = staging.cast("B")
        block_bytes = sum(shared.layout.part_bytes(part) for part in parts)
        if len(staging) != len(chain_hashes) * block_bytes:
            raise ValueError("The staging memory does not fit the blocks.")
        loaded = [False] * len(chain_hashes)
        if not parts:
            return loaded

        def look(keys: ScopeKeys, missing: list[int]) -> None:
            names = [
                [self._name(keys, chain_hashes[number], part) for part in parts]
                for number in missing
            ]
            wanted = [name for block in names for name in block]
            answers = _complete(shared.backend.get_many(wanted), of=len(wanted))
            blocks = [
                _Found(
                    number=number,
                    memory=staging[number * block_bytes : (number + 1) * block_bytes],
                    names=names[place],
                    sealed=answers[place * len(parts) : (place + 1) * len(parts)],
                )
                for place, number in enumerate(missing)
            ]
            for number in self._open(keys, blocks, parts):
                loaded[number] = True

        try:
            self._look_in_every_epoch(look, loaded)
        finally:
            for number, there in enumerate(loaded):
                if not there:
                    staging[number * block_bytes : (number + 1) * block_bytes] = bytes(block_bytes)
        return loaded

    def save(
        self, chain_hashes: Sequence[bytes], blocks: Sequence[Buffer], *, parts: Sequence[Part]
    ) -> list[bool]:
        """Seal blocks and keep them.

        Args:
            chain_hashes: Which, 32 bytes each.
            blocks: For each the bytes of its `parts` in their order. [secret]
            parts: As in `load`.
        Returns:
            For each block whether all given parts were kept.
        Raises:
            ValueError: A block has the wrong length.
        """
        shared = self._shared
        sizes = [shared.layout.part_bytes(part) for part in parts]
        views = [memoryview(block).cast("B") for block in blocks]
        if any(len(view) != sum(sizes) for view in views):
            raise ValueError("A block does not have the bytes that its layout says.")
        if not parts or self._is_out():
            return [False] * len(blocks)
        try:
            keys = shared.keys.writing_keys(self._owner)
            entries = self._seal(keys, chain_hashes, views, parts)
            kept = _complete(shared.backend.put_many(entries), of=len(entries))
        except EpochRetiredError as exc:
            shared.events.emit("store.not-kept", reason=exc.code)
            return [False] * len(blocks)
        except (StoreError, KeyringError) as exc:
            self._report(exc)
            return [False] * len(blocks)
        outcome = [
            all(kept[place * len(parts) : (place + 1) * len(parts)]) for place in range(len(blocks))
        ]
        for there in outcome:
            if not there:
                shared.events.emit("store.not-kept", reason="no-room")
        return outcome

    def _seal(
        self,
        keys: ScopeKeys,
        chain_hashes: Sequence[bytes],
        blocks: Sequence[memoryview],
        parts: Sequence[Part],
    ) -> list[Entry]:
        shared = self._shared
        now = int(shared.now_unix_s())
        sealer = BlockSealer(keys.seal_key, epoch=keys.epoch)
        sizes = [shared.layout.part_bytes(part) for part in parts]
        out = shared.sealing_memory(len(blocks) * (sum(sizes) + len(parts) * OVERHEAD_BYTES))
        nonces = os.urandom(NONCE_BYTES * len(blocks) * len(parts))
        jobs: list[SealJob] = []
        entries = []
        for chain_hash, rest in zip(chain_hashes, blocks, strict=True):
            for part, size in zip(parts, sizes, strict=True):
                name = self._name(keys, chain_hash, part)
                sealed, out = out[: size + OVERHEAD_BYTES], out[size + OVERHEAD_BYTES :]
                jobs.append(
                    SealJob(
                        sealer=sealer,
                        block=rest[:size],
                        out=sealed,
                        name=_place(name),
                        layout_digest=shared.layout.digest,
                        nonce=nonces[NONCE_BYTES * len(jobs) : NONCE_BYTES * (len(jobs) + 1)],
                    )
                )
                entries.append(
                    Entry(name=name, data=sealed, expires_unix_s=now + shared.limits.max_age_s)
                )
                rest = rest[size:]
        seal_many(jobs, created_unix_s=now, executor=shared.executor)
        return entries

    def _open(self, keys: ScopeKeys, blocks: Sequence[_Found], parts: Sequence[Part]) -> list[int]:
        """Open what was found; return the numbers of the blocks that opened in all parts."""
        shared = self._shared
        now = int(shared.now_unix_s())
        sealer = BlockSealer(keys.seal_key, epoch=keys.epoch)
        jobs: list[OpenJob] = []
        whole = []
        for block in blocks:
            sealed = [data for data in block.sealed if data is not None]
            if len(sealed) == len(parts):
                whole.append(block)
                memory = block.memory
                for part, name, data in zip(parts, block.names, sealed, strict=True):
                    size = shared.layout.part_bytes(part)
                    jobs.append(
                        OpenJob(
                            sealer=sealer,
                            sealed=data,
                            out=memory[:size],
                            name=_place(name),
                            layout_digest=shared.layout.digest,
                        )
                    )
                    memory = memory[size:]
            elif sealed:
                shared.events.emit("store.incomplete", reason="missing-part")
        lifetime = Lifetime(
            oldest_unix_s=now - shared.limits.max_age_s,
            newest_unix_s=now + shared.limits.clock_skew_s,
        )
        refusals = open_many(jobs, lifetime=lifetime, executor=shared.executor)
        opened, refused = [], []
        for place, block in enumerate(whole):
            reasons = refusals[place * len(parts) : (place + 1) * len(parts)]
            if not any(reasons):
                opened.append(block.number)
            for name, reason in zip(block.names, reasons, strict=True):
                if reason is not None:
                    shared.events.emit("store.refused", reason=reason.value)
                    refused.append(name)
        if refused:
            try:
                shared.backend.delete_many(refused)
            except StoreError as exc:  # it will not open the next time either
                self._report(exc)
        return opened

    def _look_in_every_epoch(
        self, look: Callable[[ScopeKeys, list[int]], None], found: list[bool]
    ) -> None:
        """Look under the newest keys first, then under older ones for what is still missing."""
        if self._is_out():
            return
        try:
            for keys in self._shared.keys.reading_keys(self._owner):
                missing = [number for number, there in enumerate(found) if not there]
                if missing:
                    look(keys, missing)
        except (StoreError, KeyringError) as exc:
            self._report(exc)

    def _name(self, keys: ScopeKeys, chain_hash: bytes, part: Part) -> EntryName:
        return EntryName(
            tenant=keys.tenant_bucket,
            scope=keys.scope_bucket,
            name=derive_block_name(keys.name_key, chain_hash, *part.to_fields()),
        )

    def _is_out(self) -> bool:
        return self._shared.outages.is_out(self._owner.tenant_id)

    def _report(self, error: StoreError | KeyringError) -> None:
        self._shared.outages.report(self._owner.tenant_id)
        self._shared.events.emit("store.unavailable", reason=error.code)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    number: int
    memory: memoryview
    names: Sequence[EntryName]
    sealed: Sequence[Buffer | None]


def _complete(answers: list[_Answer], *, of: int) -> list[_Answer]:
    """Refuse a list with fewer answers than questions, which would read as yes for the rest."""
    if len(answers) != of:
        raise BackendDataError("The store did not answer for every entry it was asked for.")
    return answers


def _place(name: EntryName) -> bytes:
    """Return what binds a block to where it lies; fixed lengths, so it cannot be read two ways."""
    return name.tenant + name.scope + name.name
