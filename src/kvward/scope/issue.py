"""Turn an authenticated principal's scope into the token and pseudonym that engines see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, Self

from kvward.errors import ScopeMismatchError
from kvward.scope.derive import (
    derive_anchor_subject,
    derive_named_subject,
    derive_narrowed_subject,
    derive_scope_id,
    derive_tenant_id,
    derive_tenant_key,
    derive_token_key,
    derive_user_subject,
)
from kvward.scope.keys import RootKey, TenantKey, TokenKey
from kvward.scope.model import Scope
from kvward.scope.owner import encode_owner_tag
from kvward.scope.token import encode_base64url, encode_token
from kvward.terms import SharingLevel


class TenantKeys(Protocol):
    """Where tenant keys come from: derived from a root key, or kept in a keyring."""

    def tenant_id(self, tenant: str) -> bytes:
        """Return the pseudonym of a tenant, 24 bytes."""

    def tenant_key(self, tenant: str) -> TenantKey:
        """Return the key of a tenant; the same for the same tenant until it is erased.

        Raises:
            KeyUnavailableError: there is no such key, or it has been erased.
        """


class EpochSource(Protocol):
    """Tells under which epoch tokens of a scope are issued."""

    def writing_epoch(self, tenant: str, scope_id: bytes) -> int:
        """Return the epoch that new state of a scope belongs to.

        Raises:
            KeyringUnavailableError: The keyring does not answer.
        """


class FirstEpoch:
    """Implements `EpochSource` where nothing is rotated or erased: always 0."""

    def writing_epoch(self, tenant: str, scope_id: bytes) -> int:  # noqa: ARG002 - the port's
        """Return 0."""
        return 0


class DerivedTenantKeys:
    """Tenant keys derived from the root key: nothing is stored, so nothing can be erased."""

    def __init__(self, root: RootKey, *, deployment: str) -> None:
        self._root = root
        self._deployment = deployment
        self._known: dict[str, TenantKey] = {}

    def tenant_id(self, tenant: str) -> bytes:
        """Return the pseudonym of a tenant, 24 bytes."""
        return derive_tenant_id(self._root, deployment=self._deployment, tenant=tenant)

    def tenant_key(self, tenant: str) -> TenantKey:
        """Return the tenant's key, derived once and then remembered."""
        key = self._known.get(tenant)
        if key is None:
            key = derive_tenant_key(self._root, deployment=self._deployment, tenant=tenant)
            self._known[tenant] = key
        return key


class ScopeIssuer:
    """Issues tokens, pseudonyms and subjects of one deployment.

    Args:
        keys: Port to the tenant keys.
        token_key: The deployment's token key. [secret]
        epochs: Port to the epochs of scopes.
        deployment: Name of the installation; scopes of another one are refused.
    """

    def __init__(
        self, keys: TenantKeys, token_key: TokenKey, *, epochs: EpochSource, deployment: str
    ) -> None:
        self._keys = keys
        self._epochs = epochs
        self._token_key = token_key
        self._deployment = deployment

    @classmethod
    def from_root_key(cls, root: RootKey, *, deployment: str) -> Self:
        """Build an issuer whose keys all derive from one root key."""
        keys = DerivedTenantKeys(root, deployment=deployment)
        token_key = derive_token_key(root, deployment=deployment)
        return cls(keys, token_key, epochs=FirstEpoch(), deployment=deployment)

    @property
    def deployment(self) -> str:
        """Return the name of the installation whose scopes are issued."""
        return self._deployment

    @property
    def token_key(self) -> TokenKey:
        """Return the key an engine needs to verify tokens. [secret]"""
        return self._token_key

    def current(self, *, tenant: str, level: SharingLevel, subject: bytes) -> Scope:
        """Return a scope in the epoch that its new state belongs to.

        Raises:
            KeyringUnavailableError: The keyring does not answer.
        """
        scope = Scope(
            deployment=self._deployment, tenant=tenant, level=level, subject=subject, epoch=0
        )
        if level is SharingLevel.REQUEST:
            return scope  # ends with its request, and is never stored
        return replace(scope, epoch=self._epochs.writing_epoch(tenant, self.scope_id(scope)))

    def detached_token(self, scope_id: bytes) -> str:
        """Return a token for a scope of nobody's: authentic, found by nobody else, never stored.

        For requests that must be served while the keyring does not answer.

        Args:
            scope_id: 24 random bytes.
        """
        return encode_token(self._token_key, scope_id=scope_id, epoch=0)

    def token(self, scope: Scope) -> str:
        """Return the scope token, which is the `cache_salt` that an engine receives."""
        return encode_token(self._token_key, scope_id=self.scope_id(scope), epoch=scope.epoch)

    def owner_tag(self, scope: Scope, *, token: str) -> str:
        """Return what tells an adapter, beside the token, which tenant the scope belongs to."""
        tenant_id = self._keys.tenant_id(scope.tenant)
        return encode_owner_tag(self._token_key, token=token, tenant_id=tenant_id)

    def pseudonym(self, scope: Scope) -> str:
        """Return the scope id as text: names a scope, for erasure, to whoever owns it."""
        return encode_base64url(self.scope_id(scope))

    def named_subject(self, tenant: str, name: str) -> bytes:
        """Return the subject of a conversation named by the caller. [name untrusted]"""
        return derive_named_subject(self._keys.tenant_key(tenant), name)

    def anchor_subject(self, tenant: str, opening: Sequence[bytes]) -> bytes:
        """Return the subject of a conversation known by its opening messages only.

        Two conversations of a tenant with byte-equal openings share it, and so share an erasure.
        """
        return derive_anchor_subject(self._keys.tenant_key(tenant), opening)

    def narrowed_subject(self, tenant: str, *, cache_key: str, subject: bytes) -> bytes:
        """Return a subject inside `subject`, split by the caller's cache key. [untrusted]"""
        key = self._keys.tenant_key(tenant)
        return derive_narrowed_subject(key, cache_key=cache_key, subject=subject)

    def user_subject(self, tenant: str, user: str) -> bytes:
        """Return the subject of an end user named by the tenant's application. [untrusted]"""
        return derive_user_subject(self._keys.tenant_key(tenant), user)

    def scope_id(self, scope: Scope) -> bytes:
        """Return the 24-byte pseudonym of a scope; the same in every epoch."""
        if scope.deployment != self._deployment:
            raise ScopeMismatchError("The scope belongs to another deployment.")
        return derive_scope_id(self._keys.tenant_key(scope.tenant), scope)
