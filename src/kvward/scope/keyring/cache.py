"""Keys and epochs remembered for a bounded time: the bound of an erasure in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from cachetools import TTLCache

from kvward.scope.issue import EpochSource, TenantKeys
from kvward.scope.keyring.keys import KeyClient, ScopeKeys
from kvward.scope.keys import TenantKey
from kvward.scope.owner import ScopeOwner

_MAX_ENTRIES = 65536
_EMPTY_S = 1.0


class CachedKeys:
    """Implements `KeyClient` over another one.

    Args:
        keys: Asked when nothing is remembered.
        cache_s: The keyring's; nothing is used for longer after it was asked for.
        monotonic_s: Clock.
    """

    def __init__(
        self,
        keys: KeyClient,
        *,
        cache_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        self._clock = monotonic_s
        self._cache_s = cache_s
        self._reading: TTLCache[ScopeOwner, tuple[float, Sequence[ScopeKeys]]]
        self._reading = TTLCache(_MAX_ENTRIES, cache_s, timer=monotonic_s)
        self._writing: TTLCache[ScopeOwner, tuple[float, ScopeKeys]]
        self._writing = TTLCache(_MAX_ENTRIES, cache_s, timer=monotonic_s)

    def reading_keys(self, owner: ScopeOwner) -> Sequence[ScopeKeys]:
        """Return the keys of every epoch that may still be read, newest first."""
        asked = self._clock()
        with self._lock:
            until, keys = self._reading.get(owner, (asked, ()))
        if asked < until:
            return keys
        keys = self._keys.reading_keys(owner)
        # That nothing is there is forgotten soon: another replica may be the first to store.
        # From when it was asked for, not from when the answer came: it may have been overtaken.
        until = asked + (self._cache_s if keys else min(_EMPTY_S, self._cache_s))
        with self._lock:
            self._reading[owner] = (until, keys)
        return keys

    def writing_keys(self, owner: ScopeOwner) -> ScopeKeys:
        """Return the keys to write under."""
        asked = self._clock()
        with self._lock:
            remembered = self._writing.get(owner)
        if remembered is not None and asked < remembered[0]:
            return remembered[1]
        keys = self._keys.writing_keys(owner)
        with self._lock:
            self._writing[owner] = (asked + self._cache_s, keys)
            # What was just made can be read, too.
            self._reading.pop(owner, None)
        return keys

    def forget(self) -> None:
        """Forget everything now, as after an erasure in this process."""
        with self._lock:
            self._reading.clear()
            self._writing.clear()


class CachedTenants:
    """Implements `TenantKeys` over another one; ids are pure and not remembered."""

    def __init__(
        self,
        tenants: TenantKeys,
        *,
        cache_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tenants = tenants
        self._lock = threading.Lock()
        self._clock = monotonic_s
        self._cache_s = cache_s
        self._known: TTLCache[str, tuple[float, TenantKey]]
        self._known = TTLCache(_MAX_ENTRIES, cache_s, timer=monotonic_s)

    def tenant_id(self, tenant: str) -> bytes:
        """Return the pseudonym of a tenant, 24 bytes."""
        return self._tenants.tenant_id(tenant)

    def tenant_key(self, tenant: str) -> TenantKey:
        """Return the key of a tenant."""
        asked = self._clock()
        with self._lock:
            remembered = self._known.get(tenant)
        if remembered is not None and asked < remembered[0]:
            return remembered[1]
        key = self._tenants.tenant_key(tenant)
        with self._lock:
            self._known[tenant] = (asked + self._cache_s, key)
        return key


class CachedEpochs:
    """Implements `EpochSource` over another one."""

    def __init__(
        self,
        epochs: EpochSource,
        *,
        cache_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._epochs = epochs
        self._lock = threading.Lock()
        self._clock = monotonic_s
        self._cache_s = cache_s
        self._known: TTLCache[tuple[str, bytes], tuple[float, int]]
        self._known = TTLCache(_MAX_ENTRIES, cache_s, timer=monotonic_s)

    def writing_epoch(self, tenant: str, scope_id: bytes) -> int:
        """Return the epoch that new state of a scope belongs to."""
        asked = self._clock()
        with self._lock:
            until, epoch = self._known.get((tenant, scope_id), (asked, 0))
        if asked < until:
            return epoch
        epoch = self._epochs.writing_epoch(tenant, scope_id)
        with self._lock:
            self._known[(tenant, scope_id)] = (asked + self._cache_s, epoch)
        return epoch
