"""A key wrapped by its parent: sealed under a key derived for exactly this child in this place.

```
wrapped = 01 | nonce (12) | AES-256-GCM(wrapping key, nonce, child key, associated data) | tag
```

The wrapping key derives from the parent and from everything that the wrapping is bound to, so it
seals one child key, and a random 12-byte nonce never meets another message. The same context is
the associated data.

Source: docs/spec/keyring-v1.md, section 3.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvward.canonical import Field, encode
from kvward.errors import KeyUnavailableError
from kvward.scope.derive import derive_wrapping_key
from kvward.scope.keys import KEY_BYTES, SecretKey

_LABEL = "kvward/wrapped-key/v1"
_VERSION = b"\x01"
_NONCE_BYTES = 12
WRAPPED_BYTES = len(_VERSION) + _NONCE_BYTES + KEY_BYTES + 16


def wrap_key(parent: SecretKey, material: bytes, *context: Field) -> bytes:
    """Wrap 32 key bytes under a parent and a context.

    Args:
        parent: Root or tenant key. [secret]
        material: The child's 32 bytes. [secret]
        context: Purpose, deployment, parent id, own id, epoch.
    """
    nonce = os.urandom(_NONCE_BYTES)
    cipher = AESGCM(derive_wrapping_key(parent, *context))
    return _VERSION + nonce + cipher.encrypt(nonce, material, encode(_LABEL, *context))


def unwrap_key(parent: SecretKey, wrapped: bytes, *context: Field) -> bytes:
    """Return the child's 32 bytes. [secret]

    Args:
        wrapped: As the database returned it. [untrusted]
    Raises:
        KeyUnavailableError: It was wrapped by another parent, for another place, or changed.
    """
    if len(wrapped) == WRAPPED_BYTES and wrapped[:1] == _VERSION:
        nonce, sealed = wrapped[1 : 1 + _NONCE_BYTES], wrapped[1 + _NONCE_BYTES :]
        cipher = AESGCM(derive_wrapping_key(parent, *context))
        try:
            return cipher.decrypt(nonce, sealed, encode(_LABEL, *context))
        except InvalidTag:
            pass
    raise KeyUnavailableError(
        "A key in the keyring does not unwrap.",
        hint="Its row was changed, or the keyring and the root key do not belong together.",
    )
