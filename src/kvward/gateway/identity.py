"""From an API key to the tenant that owns it. Keys are stored as hashes only."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Sequence

from kvward.errors import UnauthenticatedError
from kvward.gateway.policy import TenantPolicy

_PREFIX = "kvward-"
_KEY_BYTES = 32

Headers = Iterable[tuple[bytes, bytes]]


def generate_api_key() -> tuple[str, str]:
    """Return a fresh API key and the SHA-256 that the policy holds. The key is shown once."""
    key = _PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode().rstrip("=")
    return key, hashlib.sha256(key.encode()).hexdigest()


class KeyTable:
    """Looks up tenants by the hash of their key.

    Security:
        The look-up is by SHA-256 of the presented key, so its timing tells about the hash of a
        guess, not about a key: keys of 256 random bits cannot be approached digit by digit
        through their hashes.
    """

    def __init__(self, tenants: Sequence[TenantPolicy]) -> None:
        self._tenants = {
            digest.lower(): tenant.name for tenant in tenants for digest in tenant.key_sha256
        }

    def tenant_of(self, headers: Headers) -> str:
        """Return the tenant of a request.

        Raises:
            UnauthenticatedError: no key, two different keys, or an unknown one. The same words
                for each, so that an answer tells nothing about keys.
        """
        presented = {key for name, value in headers if (key := _key_in(name.lower(), value))}
        if len(presented) == 1:
            digest = hashlib.sha256(presented.pop()).hexdigest()
            tenant = self._tenants.get(digest)
            if tenant is not None:
                return tenant
        raise UnauthenticatedError("The API key is missing or not valid.")


def _key_in(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-api-key":
        return value.strip()
    if name == b"authorization":
        kind, _, key = value.strip().partition(b" ")
        return key.strip() if kind.lower() == b"bearer" else b"\0not a bearer token"
    return None
