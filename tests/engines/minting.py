"""What the gateway adds to a request, for tests and benchmarks that speak to the engine itself."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvward.gateway import read_policy
from kvward.gateway.setup import open_issuer
from kvward.keeping import load_public_prefixes
from kvward.scope import Scope, ScopeIssuer
from kvward.scope.owner import OWNER_FIELD
from kvward.scope.spans import SPANS_FIELD, Span, digest_tokens, encode_spans
from kvward.terms import SharingLevel


class Minter:
    """Mints tokens, owner tags and spans of one policy."""

    def __init__(self, issuer: ScopeIssuer, prefixes: Mapping[str, Any]) -> None:
        self._issuer = issuer
        self._prefixes = prefixes

    def conversation(self, tenant: str, name: str, *, system: Sequence[int] = ()) -> dict[str, Any]:
        """Return the fields of a request in a conversation.

        Args:
            system: Leading token ids that are shared in the whole tenant.
        """
        subject = self._issuer.named_subject(tenant, name)
        scope = self._issuer.current(
            tenant=tenant, level=SharingLevel.CONVERSATION, subject=subject
        )
        fields = self._fields(scope)
        if system:
            wider = self._issuer.current(tenant=tenant, level=SharingLevel.TENANT, subject=b"")
            span = Span(
                token=self._issuer.token(wider),
                end_tokens=len(system),
                digest=digest_tokens(system),
            )
            fields["kv_transfer_params"][SPANS_FIELD] = encode_spans(
                self._issuer.token_key,
                token=fields["cache_salt"],
                spans=[span],
                expires_unix_s=int(time.time()) + 60,
                nonce=os.urandom(16),
            )
        return fields

    def warm_up(self, prefix: str) -> dict[str, Any]:
        """Return the fields of an operator's request that fills a public prefix."""
        return self._fields(self._prefixes[prefix].scope(self._issuer))

    def _fields(self, scope: Scope) -> dict[str, Any]:
        token = self._issuer.token(scope)
        tag = self._issuer.owner_tag(scope, token=token)
        return {"cache_salt": token, "kv_transfer_params": {OWNER_FIELD: tag}}


@contextlib.contextmanager
def open_minter(policy: Path) -> Iterator[Minter]:
    kept = read_policy(policy)
    prefixes = {p.name: p for p in load_public_prefixes(kept.settings, kept.folder)}
    with open_issuer(kept) as issuer:
        yield Minter(issuer, prefixes)
