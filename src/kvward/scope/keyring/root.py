"""The port to whatever holds the root key: memory of this process, or a key management service.

A root wraps few keys (the deployment's, and one of each tenant) and is asked when a process starts
and when it first meets a tenant, so a slow service is good enough.
"""

from __future__ import annotations

import base64
import hmac
import os
from typing import Protocol

from kvward.canonical import Field, encode
from kvward.errors import KeyUnavailableError
from kvward.scope.keyring.wrap import unwrap_key, wrap_key
from kvward.scope.keys import KEY_BYTES, RootKey

_ROOT_ID = "kvward/root-id/v1"
ROOT_ID_BYTES = 16


class Root(Protocol):
    """Holds a root key and never gives it away."""

    @property
    def root_id(self) -> bytes:
        """Return 16 bytes that name this root, so that a wrong one is noticed by name."""

    def wrap(self, material: bytes, *context: Field) -> bytes:
        """Wrap 32 bytes, bound to a context.

        Raises:
            KeyringUnavailableError: The service does not answer.
        """

    def unwrap(self, wrapped: bytes, *context: Field) -> bytes:
        """Return the 32 bytes. [secret]

        Raises:
            KeyUnavailableError: They were not wrapped by this root for this context.
            KeyringUnavailableError: The service does not answer.
        """


class LocalRoot:
    """A root key in the memory of this process. [secret]"""

    __slots__ = ("_key",)

    def __init__(self, key: RootKey) -> None:
        self._key = key

    @property
    def root_id(self) -> bytes:
        """Return a pseudonym of the key."""
        return hmac.digest(self._key.reveal(), encode(_ROOT_ID), "sha256")[:ROOT_ID_BYTES]

    def wrap(self, material: bytes, *context: Field) -> bytes:
        """Wrap 32 bytes, bound to a context."""
        return wrap_key(self._key, material, *context)

    def unwrap(self, wrapped: bytes, *context: Field) -> bytes:
        """Return the 32 bytes. [secret]"""
        return unwrap_key(self._key, wrapped, *context)


def load_root_key_from_environment(variable: str) -> RootKey:
    """Load a root key that an environment variable holds in base64.

    Raises:
        KeyUnavailableError: The variable is missing or does not hold 32 bytes in base64.
    """
    text = os.environ.get(variable)
    if text is None:
        raise KeyUnavailableError(
            f"The environment variable {variable} is not set.",
            hint=f"Set it to 32 random bytes in base64: {variable}=$(openssl rand -base64 32)",
        )
    try:
        material = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        material = b""
    if len(material) != KEY_BYTES:
        raise KeyUnavailableError(
            f"The environment variable {variable} does not hold {KEY_BYTES} bytes in base64.",
            hint="Make one with: openssl rand -base64 32",
        )
    return RootKey(material)
