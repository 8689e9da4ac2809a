"""From an API key to the tenant or operator that owns it. Keys are stored as hashes only."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvward.errors import UnauthenticatedError
from kvward.gateway.policy import KeyHolder

_PREFIX = "kvward-"
_KEY_BYTES = 32

Headers = Iterable[tuple[bytes, bytes]]


def generate_api_key() -> tuple[str, str]:
    """Return a fresh API key and the SHA-256 that the policy holds. The key is shown once."""
    key = _PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode().rstrip("=")
    return key, hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks: a tenant, whose requests have scopes, or an operator, whose have none."""

    name: str
    is_operator: bool


class KeyTable:
    """Looks up tenants and operators by the hash of their key. No key belongs to two of them.

    Security:
        The look-up is by SHA-256 of the presented key, so its timing tells about the hash of a
        guess, not about a key: keys of 256 random bits cannot be approached digit by digit
        through their hashes.
    """

    def __init__(self, tenants: Sequence[KeyHolder], operators: Sequence[KeyHolder]) -> None:
        self._principals = {
            digest.lower(): Principal(name=holder.name, is_operator=is_operator)
            for holders, is_operator in ((operators, True), (tenants, False))
            for holder in holders
            for digest in holder.key_sha256
        }

    def principal_of(self, headers: Headers) -> Principal:
        """Return who sent a request.

        Raises:
            UnauthenticatedError: no key, two different keys, or an unknown one. The same words
                for each, so that an answer tells nothing about keys.
        """
        presented = {key for name, value in headers if (key := _key_in(name.lower(), value))}
        if len(presented) == 1:
            digest = hashlib.sha256(presented.pop()).hexdigest()
            principal = self._principals.get(digest)
            if principal is not None:
                return principal
        raise UnauthenticatedError("The API key is missing or not valid.")


def _key_in(name: bytes, value: bytes) -> bytes | None:
    if name == b"x-api-key":
        return value.strip()
    if name == b"authorization":
        kind, _, key = value.strip().partition(b" ")
        return key.strip() if kind.lower() == b"bearer" else b"\0not a bearer token"
    return None
