"""The connector over a store that seals nothing: a baseline for benchmarks and for nothing else.

The same backend, names and transfers; bytes are stored as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvward.adapters.vllm import connector, runtime
from kvward.keeping import Kept
from kvward.scope.derive import derive_block_name
from kvward.scope.owner import ScopeOwner
from kvward.store import Entry, EntryName

_FAR_UNIX_S = 4_000_000_000


class PlainStore:
    """Has the methods of `SealedStore` that the connector uses."""

    def __init__(self, kept: Kept[Any], keyring: Any, layout: Any) -> None:
        self._backend = kept.backend()
        self._keyring = keyring
        self._layout = layout
        self._keys: dict[ScopeOwner, Any] = {}

    def scope(self, owner: ScopeOwner) -> PlainScope:
        if owner not in self._keys:
            self._keys[owner] = self._keyring.writing_keys(owner)
        return PlainScope(self._backend, self._keys[owner], self._layout)


class PlainScope:
    def __init__(self, backend: Any, keys: Any, layout: Any) -> None:
        self._backend = backend
        self._keys = keys
        self._layout = layout

    def _names(self, chain_hashes: Sequence[bytes]) -> list[EntryName]:
        (part,) = self._layout.parts
        return [
            EntryName(
                tenant=self._keys.tenant_bucket,
                scope=self._keys.scope_bucket,
                name=derive_block_name(self._keys.name_key, chain_hash, *part.to_fields()),
            )
            for chain_hash in chain_hashes
        ]

    def contains(self, chain_hashes: Sequence[bytes]) -> list[bool]:
        return list(self._backend.contains_many(self._names(chain_hashes)))

    def load(
        self, chain_hashes: Sequence[bytes], staging: memoryview, *, parts: Sequence[Any]
    ) -> list[bool]:
        size = self._layout.block_bytes
        found = self._backend.get_many(self._names(chain_hashes))
        for number, data in enumerate(found):
            if data is not None:
                staging[number * size : (number + 1) * size] = data
        return [data is not None for data in found]

    def save(
        self, chain_hashes: Sequence[bytes], blocks: Sequence[Any], *, parts: Sequence[Any]
    ) -> list[bool]:
        names = self._names(chain_hashes)
        return list(
            self._backend.put_many(
                [
                    Entry(name=name, data=memoryview(block), expires_unix_s=_FAR_UNIX_S)
                    for name, block in zip(names, blocks, strict=True)
                ]
            )
        )


class PlainRuntime(runtime.Runtime):
    def _open_store(self, kept: Kept[Any], keyring: Any, layout: Any) -> Any:
        return PlainStore(kept, keyring, layout)


class PlainConnector(connector.KvwardConnector):
    """The connector over a store that seals nothing."""


connector.Runtime = PlainRuntime  # type: ignore[misc]
