"""Open what one process of an engine needs: keys, store, public prefixes; and close it again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kvward.adapters.vllm.admission import PublicPrefix
from kvward.adapters.vllm.settings import ConnectorSettings
from kvward.adapters.vllm.spool import EventSpool
from kvward.blocks.equivalence import Equivalences
from kvward.blocks.layout import BlockLayout
from kvward.errors import ConfigError, KeyringError
from kvward.keeping import (
    Kept,
    KeptSettings,
    RegisteredPrefix,
    find_unkept,
    honour_contract,
    load_public_prefixes,
    read_policy_file,
    select_kept,
)
from kvward.scope import ScopeIssuer
from kvward.scope.keyring import Keyring
from kvward.store import SealedStore

_MEMORY = "memory:"
_REFRESH_S = 5.0


class Runtime:
    """What the policy names, opened for one process.

    Args:
        role: "scheduler" or "worker".
    Attributes:
        issuer: Of the deployment.
        store: None when the policy has none.
        equal: Models whose stored state the operator lets this one read.
        events: Counts everything that happens here.
        notes: What the operator should know of the contract.
    """

    def __init__(self, settings: ConnectorSettings, layout: BlockLayout, *, role: str) -> None:
        path = Path(settings.policy)
        kept = Kept(
            settings=select_kept(read_policy_file(path), source=str(path)), folder=path.parent
        )
        self._stack = contextlib.ExitStack()
        self.events = EventSpool(settings.events_folder, role=role)
        self._stack.callback(self.events.close)
        self.store: SealedStore | None = None
        self.equal = Equivalences(read_as={})
        cache_s = _REFRESH_S
        if kept.settings.keyring is None:
            self.issuer = ScopeIssuer.from_root_key(
                kept.load_root_key(), deployment=kept.settings.deployment
            )
        else:
            keyring = self._stack.enter_context(kept.keyring())
            cache_s = float(keyring.lifetimes.cache_s)
            self.issuer = kept.issuer(keyring)
            if kept.settings.store is not None:
                _refuse_memory(kept)
                self.equal = kept.equivalences(keyring)
                self.store = self._open_store(kept, keyring, layout)
        prefixes = load_public_prefixes(kept.settings, kept.folder)
        self.notes = honour_contract(
            kept, lambda contract: find_unkept(contract, kept.settings, prefixes)
        )
        self.public = PublicScopes(
            prefixes, self.issuer, is_stored=self.store is not None, cache_s=cache_s
        )
        if role == "scheduler" and prefixes:
            self.public.start()
        self._stack.callback(self.public.close)

    def _open_store(
        self, kept: Kept[KeptSettings], keyring: Keyring, layout: BlockLayout
    ) -> SealedStore:
        return kept.sealed_store(keyring, layout, events=self.events)

    def close(self) -> None:
        """Close keyring, store and files."""
        self._stack.close()


class PublicScopes:
    """The registered prefixes as they are now, asked for beside the scheduler's loop.

    Args:
        cache_s: How long an answer of the keyring may be used; after that nothing is public.
    """

    def __init__(
        self,
        prefixes: Sequence[RegisteredPrefix],
        issuer: ScopeIssuer,
        *,
        is_stored: bool,
        cache_s: float,
    ) -> None:
        self._prefixes = prefixes
        self._issuer = issuer
        self._is_stored = is_stored
        self._cache_s = cache_s
        self._end = threading.Event()
        self._now: tuple[float, tuple[PublicPrefix, ...]] = (0.0, ())

    @property
    def num_registered(self) -> int:
        """Return how many prefixes the policy names."""
        return len(self._prefixes)

    def current(self) -> tuple[PublicPrefix, ...]:
        """Return the prefixes; none when the keyring has not answered for too long."""
        until, prefixes = self._now
        return prefixes if time.monotonic() < until else ()

    def start(self) -> None:
        """Ask once now, and go on asking in a thread."""
        self._refresh()
        threading.Thread(target=self._run, name="kvward-public", daemon=True).start()

    def close(self) -> None:
        """Ask no more."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(min(_REFRESH_S, self._cache_s / 2)):
            self._refresh()

    def _refresh(self) -> None:
        asked = time.monotonic()
        try:
            found = tuple(self._describe(prefix) for prefix in self._prefixes)
        except KeyringError:
            return
        self._now = (asked + self._cache_s, found)

    def _describe(self, prefix: RegisteredPrefix) -> PublicPrefix:
        token = self._issuer.token(prefix.scope(self._issuer))
        owner = prefix.owner(self._issuer, token=token) if self._is_stored else None
        return PublicPrefix(token_ids=prefix.token_ids, token=token, owner=owner)


def _refuse_memory(kept: Kept[KeptSettings]) -> None:
    if kept.store_policy.location.startswith(_MEMORY):
        raise ConfigError(
            "The store is in memory, and the engine's processes would each have their own.",
            hint='Name another location under [store], for example "file:store".',
        )
