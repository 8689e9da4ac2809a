"""Every derivation of scopes, in one table of labels. Pure functions, HKDF-SHA-256 and HMAC.

A label is used for one purpose only and is never edited; a changed derivation is a new label.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from enum import StrEnum

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kvward.canonical import Field, encode
from kvward.scope.keys import KEY_BYTES, RootKey, SecretKey, TenantKey, TokenKey
from kvward.scope.model import Scope

SCOPE_ID_BYTES = 24
MAC_BYTES = 32


class Label(StrEnum):
    """Domain separation labels of this package."""

    TENANT_KEY = "kvward/tenant-key/v1"
    TOKEN_KEY = "kvward/token-key/v1"  # noqa: S105 - a label, not a secret
    SCOPE_ID = "kvward/scope-id/v1"
    SCOPE_TOKEN = "kvward/scope-token/v1"  # noqa: S105 - a label, not a secret
    CONVERSATION_NAME = "kvward/subject/conversation-name/v1"
    CONVERSATION_ANCHOR = "kvward/subject/conversation-anchor/v1"
    CONVERSATION_NARROWED = "kvward/subject/conversation-narrowed/v1"
    USER = "kvward/subject/user/v1"


def _hkdf(key: SecretKey, label: Label, *fields: Field, num_bytes: int) -> bytes:
    info = encode(label, *fields)
    return HKDF(algorithm=SHA256(), length=num_bytes, salt=None, info=info).derive(key.reveal())


def _hmac(key: SecretKey, label: Label, *fields: Field) -> bytes:
    return hmac.new(key.reveal(), encode(label, *fields), hashlib.sha256).digest()


def derive_tenant_key(root: RootKey, *, deployment: str, tenant: str) -> TenantKey:
    """Derive the key of one tenant of one deployment."""
    return TenantKey(_hkdf(root, Label.TENANT_KEY, deployment, tenant, num_bytes=KEY_BYTES))


def derive_token_key(root: RootKey, *, deployment: str) -> TokenKey:
    """Derive the key that authenticates scope tokens of one deployment."""
    return TokenKey(_hkdf(root, Label.TOKEN_KEY, deployment, num_bytes=KEY_BYTES))


def derive_scope_id(tenant_key: TenantKey, scope: Scope) -> bytes:
    """Derive the 24-byte pseudonym of a scope.

    The epoch is left out on purpose: the pseudonym stays the same while keys rotate, so that a
    scope can be named for erasure. The token binds the epoch.
    """
    return _hkdf(
        tenant_key,
        Label.SCOPE_ID,
        scope.deployment,
        scope.tenant,
        scope.level.value,
        scope.subject,
        num_bytes=SCOPE_ID_BYTES,
    )


def derive_token_mac(token_key: TokenKey, *, scope_id: bytes, epoch: int) -> bytes:
    """Derive the 32-byte authenticator of a scope token."""
    return _hmac(token_key, Label.SCOPE_TOKEN, scope_id, epoch)


def derive_named_subject(tenant_key: TenantKey, name: str) -> bytes:
    """Derive the subject of a conversation that the caller named inside its tenant."""
    return _hmac(tenant_key, Label.CONVERSATION_NAME, name)


def derive_anchor_subject(tenant_key: TenantKey, opening: Sequence[bytes]) -> bytes:
    """Derive the subject of a conversation from its opening messages, canonical bytes each."""
    return _hmac(tenant_key, Label.CONVERSATION_ANCHOR, list(opening))


def derive_narrowed_subject(tenant_key: TenantKey, *, cache_key: str, subject: bytes) -> bytes:
    """Derive a narrower subject: the caller's cache key splits a conversation, never joins two."""
    return _hmac(tenant_key, Label.CONVERSATION_NARROWED, cache_key, subject)


def derive_user_subject(tenant_key: TenantKey, user: str) -> bytes:
    """Derive the subject of an end user whom the tenant's application named."""
    return _hmac(tenant_key, Label.USER, user)
