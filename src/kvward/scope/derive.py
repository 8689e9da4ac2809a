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
from kvward.scope.keys import (
    KEY_BYTES,
    DeploymentKey,
    NameKey,
    RootKey,
    SecretKey,
    TenantKey,
    TokenKey,
)
from kvward.scope.model import Scope

SCOPE_ID_BYTES = 24
TENANT_ID_BYTES = 24
BUCKET_BYTES = 16
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
    TENANT_ID = "kvward/tenant-id/v1"
    TENANT_OWNER = "kvward/tenant-owner/v1"
    TENANT_BUCKET = "kvward/tenant-bucket/v1"
    SCOPE_BUCKET = "kvward/scope-bucket/v1"
    NAME_KEY = "kvward/name-key/v1"
    BLOCK_NAME = "kvward/block-name/v1"
    WRAPPING_KEY = "kvward/wrapping-key/v1"
    SPANS = "kvward/spans/v1"


def _hkdf(key: SecretKey, label: Label, *fields: Field, num_bytes: int) -> bytes:
    info = encode(label, *fields)
    return HKDF(algorithm=SHA256(), length=num_bytes, salt=None, info=info).derive(key.reveal())


def _hmac(key: SecretKey, label: Label, *fields: Field) -> bytes:
    return hmac.new(key.reveal(), encode(label, *fields), hashlib.sha256).digest()


def derive_tenant_key(root: RootKey, *, deployment: str, tenant: str) -> TenantKey:
    """Derive the key of one tenant of one deployment."""
    return TenantKey(_hkdf(root, Label.TENANT_KEY, deployment, tenant, num_bytes=KEY_BYTES))


def derive_token_key(root: RootKey | DeploymentKey, *, deployment: str) -> TokenKey:
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


def derive_tenant_id(key: RootKey | DeploymentKey, *, deployment: str, tenant: str) -> bytes:
    """Derive the 24-byte pseudonym of a tenant, under which the keyring knows it."""
    return _hkdf(key, Label.TENANT_ID, deployment, tenant, num_bytes=TENANT_ID_BYTES)


def derive_owner_mac(token_key: TokenKey, *, token: str, tenant_id: bytes) -> bytes:
    """Derive the 32-byte authenticator that says whose a scope token is."""
    return _hmac(token_key, Label.TENANT_OWNER, token, tenant_id)


def derive_spans_mac(
    token_key: TokenKey,
    *,
    token: str,
    spans: Sequence[tuple[str, int, bytes]],
    expires_unix_s: int,
    nonce: bytes,
) -> bytes:
    """Derive the 32-byte authenticator of a request's spans.

    Args:
        spans: Token of the wider scope, end and digest of each.
    """
    fields: list[Field] = [[wider, end, digest] for wider, end, digest in spans]
    return _hmac(token_key, Label.SPANS, token, fields, expires_unix_s, nonce)


def derive_tenant_bucket(key: DeploymentKey, *, tenant_id: bytes) -> bytes:
    """Derive the 16-byte pseudonym under which stores group a tenant's entries.

    It outlives the tenant's key: a tenant that was erased and comes back has the protected share of
    one tenant, not of two.
    """
    return _hkdf(key, Label.TENANT_BUCKET, tenant_id, num_bytes=BUCKET_BYTES)


def derive_scope_bucket(tenant_key: TenantKey, scope_id: bytes) -> bytes:
    """Derive the 16-byte pseudonym under which stores group a scope's entries, of all epochs.

    It differs from the scope id, so that whoever sees tokens and a store cannot join the two.
    """
    return _hkdf(tenant_key, Label.SCOPE_BUCKET, scope_id, num_bytes=BUCKET_BYTES)


def derive_name_key(tenant_key: TenantKey, *, scope_id: bytes, epoch: int) -> NameKey:
    """Derive the key that names the stored blocks of a scope in one epoch."""
    return NameKey(_hkdf(tenant_key, Label.NAME_KEY, scope_id, epoch, num_bytes=KEY_BYTES))


def derive_block_name(name_key: NameKey, chain_hash: bytes, *part: Field) -> bytes:
    """Derive the 32-byte name of a stored block.

    Args:
        chain_hash: Identity of the block and of everything before it, 32 bytes.
        part: Which piece of the block, as `Part.to_fields` says.
    Security:
        Whoever lacks the name key can neither test a guessed prompt against names nor tell whether
        two scopes hold the same content.
    """
    return _hmac(name_key, Label.BLOCK_NAME, chain_hash, *part)


def derive_wrapping_key(parent: SecretKey, *context: Field) -> bytes:
    """Derive the key that wraps exactly one child key in one place. [secret]

    Args:
        context: Deployment, parent, child, epoch: everything that the wrapping is bound to.
    """
    return _hkdf(parent, Label.WRAPPING_KEY, *context, num_bytes=KEY_BYTES)
