"""Open what a policy says is kept: root key, keyring, store."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from kvward.blocks.equivalence import Equivalences, verify_equivalences
from kvward.blocks.layout import BlockLayout
from kvward.errors import ConfigError
from kvward.events import EventSink
from kvward.keeping.backends import open_backend
from kvward.keeping.sections import KeptSettings, KeyringPolicy, StorePolicy
from kvward.scope import RootKey, ScopeIssuer, load_root_key
from kvward.scope.keyring import (
    CachedEpochs,
    CachedKeys,
    CachedTenants,
    Database,
    KeyLifetimes,
    Keyring,
    LocalRoot,
    Root,
    SqliteDatabase,
    derive_receipt_key,
    load_root_key_from_environment,
)
from kvward.store import Backend, SealedStore, StoreLimits

_THREADS = 2

Settings = TypeVar("Settings", bound=KeptSettings)


@dataclass(frozen=True, kw_only=True)
class Kept(Generic[Settings]):
    """Settings and where they lie.

    Attributes:
        settings: The gateway's whole policy, or what an adapter reads of it.
        folder: What relative paths in the settings are relative to.
    """

    settings: Settings
    folder: Path

    @property
    def keyring_policy(self) -> KeyringPolicy:
        """Return the section of the keyring.

        Raises:
            ConfigError: The policy has none.
        """
        if self.settings.keyring is None:
            raise ConfigError(
                "The policy has no [keyring], so there are no keys to work with.",
                hint='Add one, with database = "sqlite:keyring.db", cache_s, request_s and '
                "max_age_s.",
            )
        return self.settings.keyring

    @property
    def store_policy(self) -> StorePolicy:
        """Return the section of the store.

        Raises:
            ConfigError: The policy has none.
        """
        if self.settings.store is None:
            raise ConfigError(
                "The policy has no [store], so no state is kept outside engines.",
                hint='Add one, with location = "file:store", capacity_bytes and share_bytes.',
            )
        return self.settings.store

    def load_root(self) -> Root:
        """Load the root that the policy names."""
        settings = self.settings
        if settings.root_pkcs11 is not None:
            from kvward.scope.keyring.pkcs11 import Pkcs11Root

            return Pkcs11Root.from_settings(
                module=settings.root_pkcs11.module,
                token_label=settings.root_pkcs11.token_label,
                key_label=settings.root_pkcs11.key_label,
                pin=from_environment(settings.root_pkcs11.pin_env),
            )
        return LocalRoot(self.load_root_key())

    def load_root_key(self) -> RootKey:
        """Load the root key that the policy names, where this process may hold it."""
        if self.settings.root_key_env is not None:
            return load_root_key_from_environment(self.settings.root_key_env)
        return load_root_key(self.folder / (self.settings.root_key_file or ""))

    @contextmanager
    def keyring(self, *, now_unix_s: Callable[[], float] = time.time) -> Iterator[Keyring]:
        """Open the keyring for as long as the block runs."""
        section = self.keyring_policy
        root = self.load_root()
        database = self._database(section)
        try:
            yield Keyring(
                database,
                root,
                deployment=self.settings.deployment,
                lifetimes=KeyLifetimes(
                    cache_s=section.cache_s,
                    request_s=section.request_s,
                    max_age_s=section.max_age_s,
                ),
                now_unix_s=now_unix_s,
            )
        finally:
            database.close()

    def issuer(self, keyring: Keyring) -> ScopeIssuer:
        """Return the gateway's issuer over a keyring, with bounded memory of what it says."""
        cache_s = keyring.lifetimes.cache_s
        return ScopeIssuer(
            CachedTenants(keyring, cache_s=cache_s),
            keyring.token_key,
            epochs=CachedEpochs(keyring, cache_s=cache_s),
            deployment=self.settings.deployment,
        )

    def equivalences(self, keyring: Keyring) -> Equivalences:
        """Return which models' state may be read as another's: none, unless the operator signed.

        Raises:
            ConfigError: The list was not signed with this keyring's key, or cannot be read.
        """
        name = self.store_policy.equivalences
        if name is None:
            return Equivalences(read_as={})
        path = self.folder / name
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(
                f"The list of equal models {path} cannot be read.",
                hint="Write it with `kvward store equate`, or take it out of the policy.",
            ) from exc
        public_key = base64.b64decode(derive_receipt_key(keyring.receipt_seed))
        return verify_equivalences(text, public_key=public_key)

    def backend(self) -> Backend:
        """Open the backend of the store."""
        return open_backend(self.store_policy, self.folder)

    def sealed_store(
        self, keyring: Keyring, layout: BlockLayout, *, events: EventSink
    ) -> SealedStore:
        """Return the store of sealed state for blocks of a layout."""
        section = self.store_policy
        return SealedStore(
            self.backend(),
            CachedKeys(keyring, cache_s=keyring.lifetimes.cache_s),
            layout=layout,
            limits=StoreLimits(
                max_age_s=keyring.lifetimes.max_age_s,
                clock_skew_s=section.clock_skew_s,
                retry_after_s=section.retry_after_s,
            ),
            events=events,
            executor=ThreadPoolExecutor(_THREADS, thread_name_prefix="seal"),
        )

    def _database(self, section: KeyringPolicy) -> Database:
        kind, _, place = section.database.partition(":")
        if kind == "sqlite" and place:
            return SqliteDatabase(self.folder / place)
        if kind == "postgres" and place:
            from kvward.scope.keyring.postgres import PostgresDatabase

            return PostgresDatabase(from_environment(place), timeout_s=section.timeout_s)
        raise ConfigError(
            f"The keyring database {section.database!r} is not understood.",
            hint='Use "sqlite:FILE" or "postgres:VARIABLE".',
        )


def from_environment(variable: str) -> str:
    """Return what an environment variable that the policy names holds. [secret]"""
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(
            f"The environment variable {variable} is not set.", hint="The policy names it."
        )
    return value
