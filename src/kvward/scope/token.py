"""The scope token: the one string that tells an engine under which scope a request runs.

```
kw1.<scope id>.<epoch>.<mac>
     32 chars   1-19    43 chars     base64url without padding; epoch decimal; at most 101 chars
```

It is a pseudonym, not a secret: it shows in engine logs and cache events. It names no tenant,
cannot be guessed, and its MAC proves that a holder of the deployment's token key issued it.
Format version 1, never edited; `docs/spec/scope-token-v1.md`, `vectors/scope-token-v1.json`.
"""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import dataclass

from kvward.errors import ScopeMismatchError
from kvward.scope.derive import derive_token_mac
from kvward.scope.keys import TokenKey
from kvward.scope.model import MAX_EPOCH

_TOKEN = re.compile(
    r"kw1\.([A-Za-z0-9_-]{32})\.(0|[1-9][0-9]{0,18})\.([A-Za-z0-9_-]{43})", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedToken:
    """A scope token whose MAC was checked. `scope_id` has 24 bytes."""

    scope_id: bytes
    epoch: int


def encode_token(token_key: TokenKey, *, scope_id: bytes, epoch: int) -> str:
    """Write the token of a scope id and epoch. At most 101 characters of `[A-Za-z0-9_.-]`."""
    mac = derive_token_mac(token_key, scope_id=scope_id, epoch=epoch)
    return f"kw1.{encode_base64url(scope_id)}.{epoch}.{encode_base64url(mac)}"


def verify_token(text: str, *, token_key: TokenKey) -> VerifiedToken:
    """Check a token and return what it says.

    Args:
        text: Any string. [untrusted]
        token_key: The deployment's token key. [secret]
    Raises:
        ScopeMismatchError: The text is not a token of this deployment, for whatever reason.
    Security:
        One canonical spelling is accepted; the MAC comparison is constant-time. The epoch is
        authentic but not checked against retirement: that needs the keyring.
    Source:
        docs/spec/scope-token-v1.md, section 3
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ScopeMismatchError("The scope token is not valid in this deployment.")
    scope_id = base64.urlsafe_b64decode(match[1])
    epoch = int(match[2])
    # (1) The whole text is compared, so that a second spelling of the same MAC is refused too.
    expected = encode_token(token_key, scope_id=scope_id, epoch=epoch)
    if epoch > MAX_EPOCH or not hmac.compare_digest(expected.encode(), text.encode()):
        raise ScopeMismatchError("The scope token is not valid in this deployment.")
    return VerifiedToken(scope_id=scope_id, epoch=epoch)


def decode_base64url(text: str) -> bytes | None:
    """Read base64url without padding; None when it is not spelled as we spell it. [untrusted]"""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return data if encode_base64url(data) == text else None


def encode_base64url(data: bytes) -> str:
    """Write bytes as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
