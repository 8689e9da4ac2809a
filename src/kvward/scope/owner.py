"""The owner tag: says, beside a scope token, in whose name the token was issued.

A token names a scope and nothing else. An adapter that keeps state in a store needs the tenant,
too, whose key wraps the scope's; it learns it as a pseudonym from the gateway in this tag.

```
kwo1.<tenant id>.<mac>
      32 chars    43 chars     base64url without padding; at most 81 chars
```

The MAC covers token and tenant id together, so a tag fits one token only. Like the token it is a
pseudonym, not a secret; a caller who sends one is overruled by the gateway.
Format version 1, never edited; `docs/spec/owner-tag-v1.md`, `vectors/owner-tag-v1.json`.
"""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import dataclass

from kvward.errors import ScopeMismatchError
from kvward.scope.derive import derive_owner_mac
from kvward.scope.keys import TokenKey
from kvward.scope.token import encode_base64url, verify_token

OWNER_FIELD = "kvward_owner"
"""Name of the tag inside `kv_transfer_params`."""

_TAG = re.compile(r"kwo1\.([A-Za-z0-9_-]{32})\.([A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeOwner:
    """A scope and the tenant it belongs to, both as pseudonyms, both authenticated.

    Attributes:
        tenant_id: 24 bytes.
        scope_id: 24 bytes.
        epoch: Of the token; what is written goes under this epoch.
    """

    tenant_id: bytes
    scope_id: bytes
    epoch: int


def encode_owner_tag(token_key: TokenKey, *, token: str, tenant_id: bytes) -> str:
    """Write the owner tag of a token."""
    mac = derive_owner_mac(token_key, token=token, tenant_id=tenant_id)
    return f"kwo1.{encode_base64url(tenant_id)}.{encode_base64url(mac)}"


def verify_owner(tag: str, *, token: str, token_key: TokenKey) -> ScopeOwner:
    """Check a token and its owner tag together.

    Args:
        tag: Any string. [untrusted]
        token: Any string. [untrusted]
        token_key: The deployment's. [secret]
    Raises:
        ScopeMismatchError: One of them is not authentic, or they do not belong together.
    """
    verified = verify_token(token, token_key=token_key)
    match = _TAG.fullmatch(tag)
    if match is not None:
        tenant_id = base64.urlsafe_b64decode(match[1])
        expected = encode_owner_tag(token_key, token=token, tenant_id=tenant_id)
        if hmac.compare_digest(expected.encode(), tag.encode()):
            return ScopeOwner(tenant_id=tenant_id, scope_id=verified.scope_id, epoch=verified.epoch)
    raise ScopeMismatchError("The owner tag is not valid for this scope token.")
