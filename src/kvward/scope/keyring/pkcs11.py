"""A root key that never leaves its PKCS#11 token: a hardware module, a cloud's, or SoftHSM.

Needs the extra `pkcs11`. The token does the AES-256-GCM; this process sees tenant keys only.

```
wrapped = 02 | nonce (12) | AES-256-GCM(root key, nonce, child key, associated data) | tag
```

The root key wraps one key for each tenant and generation, far below the number of messages for
which random nonces of 12 bytes are sound.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any, Self

import pkcs11
from pkcs11 import Attribute, GCMParams, KeyType, Mechanism
from pkcs11.exceptions import (
    EncryptedDataInvalid,
    GeneralError,
    NoSuchKey,
    NoSuchToken,
    PinIncorrect,
    PKCS11Error,
)

from kvward.canonical import Field, encode
from kvward.errors import ConfigError, KeyringUnavailableError, KeyUnavailableError
from kvward.scope.keyring.root import ROOT_ID_BYTES

_LABEL = "kvward/wrapped-key/v2"
_ROOT_ID = "kvward/pkcs11-root-id/v1"
_VERSION = b"\x02"
_NONCE_BYTES = 12
_TAG_BITS = 128


class Pkcs11Root:
    """Implements `Root`.

    Args:
        session: Logged in; used by one thread at a time.
        key: An AES-256 key of the token that may encrypt and decrypt; the library's types do not
            say which methods it has.
        root_id: Names the key.
    """

    def __init__(self, session: pkcs11.Session, key: Any, root_id: bytes) -> None:
        self._session = session
        self._key = key
        self._root_id = root_id
        self._lock = threading.Lock()

    @classmethod
    def from_settings(cls, *, module: str, token_label: str, key_label: str, pin: str) -> Self:
        """Log in to a token and find the key.

        Args:
            module: Path of the token's library.
            pin: The user PIN. [secret]
        Raises:
            ConfigError: There is no such library, token or key, or the PIN is wrong.
            KeyringUnavailableError: The token does not answer.
        """
        try:
            token = pkcs11.lib(module).get_token(token_label=token_label)
            session = token.open(user_pin=pin)
            key = session.get_key(key_type=KeyType.AES, label=key_label)
            identity = (token.serial, key_label, key[Attribute.ID])
        except (RuntimeError, PKCS11Error) as exc:
            if type(exc) in {RuntimeError, PKCS11Error}:  # what loading a library raises
                raise ConfigError(
                    f"The PKCS#11 library {module} cannot be loaded.", hint="Correct its path."
                ) from exc
            for kind, what in [
                (NoSuchToken, f"no token {token_label!r}"),
                (NoSuchKey, f"no AES key {key_label!r} in the token"),
                (PinIncorrect, "another PIN"),
            ]:
                if isinstance(exc, kind):
                    raise ConfigError(
                        f"The PKCS#11 library {module} has {what}.",
                        hint="See the section of the root key in docs/spec/keyring-v1.md.",
                    ) from exc
            raise KeyringUnavailableError(
                f"The PKCS#11 token does not answer: {type(exc).__name__}."
            ) from exc
        digest = hashlib.sha256(encode(_ROOT_ID, *identity)).digest()
        return cls(session, key, digest[:ROOT_ID_BYTES])

    @property
    def root_id(self) -> bytes:
        """Return a pseudonym of token and key."""
        return self._root_id

    def wrap(self, material: bytes, *context: Field) -> bytes:
        """Wrap 32 bytes, bound to a context."""
        nonce = os.urandom(_NONCE_BYTES)
        params = GCMParams(nonce, encode(_LABEL, *context), _TAG_BITS)
        try:
            with self._lock:
                sealed = self._key.encrypt(
                    material, mechanism=Mechanism.AES_GCM, mechanism_param=params
                )
        except PKCS11Error as exc:
            raise _no_answer(exc) from exc
        return _VERSION + nonce + bytes(sealed)

    def unwrap(self, wrapped: bytes, *context: Field) -> bytes:
        """Return the 32 bytes. [secret]"""
        nonce, sealed = wrapped[1 : 1 + _NONCE_BYTES], wrapped[1 + _NONCE_BYTES :]
        if wrapped[:1] != _VERSION or len(sealed) <= _TAG_BITS // 8:
            raise _does_not_unwrap()
        params = GCMParams(nonce, encode(_LABEL, *context), _TAG_BITS)
        try:
            with self._lock:
                return bytes(
                    self._key.decrypt(sealed, mechanism=Mechanism.AES_GCM, mechanism_param=params)
                )
        except (EncryptedDataInvalid, GeneralError) as exc:
            # SoftHSM says "general error" for a tag that does not fit.
            raise _does_not_unwrap() from exc
        except PKCS11Error as exc:
            raise _no_answer(exc) from exc

    def close(self) -> None:
        """Log out."""
        with self._lock:
            self._session.close()

    def __repr__(self) -> str:
        return "<Pkcs11Root>"


def _does_not_unwrap() -> KeyUnavailableError:
    return KeyUnavailableError(
        "A key in the keyring does not unwrap.",
        hint="Its row was changed, or the keyring and the token's key do not belong together.",
    )


def _no_answer(error: PKCS11Error) -> KeyringUnavailableError:
    return KeyringUnavailableError(f"The PKCS#11 token does not answer: {type(error).__name__}.")
