"""Who a caller is, and under which salt their requests run."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from http import HTTPStatus

from kvward.canonical import encode
from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.server.wire import BadRequestError


class Door:
    """Lets callers in, and knows their scope.

    Args:
        api_keys: Keys that are let in; None lets everybody in, as engines do by default.
        scope_by_key: Whether every key is a scope of its own, inside which the caller's salt
            divides further. Otherwise the caller's salt is all there is, as in engines.
    """

    def __init__(
        self, api_keys: frozenset[str] | None, *, scope_by_key: bool, behaviour: Behaviour
    ) -> None:
        self._api_keys = api_keys
        self._scope_by_key = scope_by_key
        self._behaviour = behaviour

    def let_in(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Return the caller's key; empty where everybody is let in.

        Raises:
            BadRequestError: The key is not known.
        """
        given = dict(headers).get(b"authorization", b"").removeprefix(b"Bearer ")
        if self._api_keys is None:
            return given if self._scope_by_key else b""
        if not any(hmac.compare_digest(given, known.encode()) for known in self._api_keys):
            raise BadRequestError("The API key is not known.", status=HTTPStatus.UNAUTHORIZED)
        return given

    def salt(self, key: bytes, cache_salt: str | None) -> str | None:
        """Return the salt that a request runs under.

        Args:
            cache_salt: What the caller asked for. [untrusted]
        """
        if not self._scope_by_key:
            return cache_salt
        if cache_salt is not None and self._behaviour.slips(Slip.SALT_FROM_CALLER):
            return cache_salt
        return hashlib.sha256(encode("kvward/lab/door/v1", key, cache_salt)).hexdigest()
