"""An operator's request that fills a public prefix: the only one that writes public state.

Its prompt is the prefix itself, in tokens, so nothing that anybody asked is in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvward.errors import KeyringUnavailableError, UsageError
from kvward.gateway.body import parse_body
from kvward.keeping import RegisteredPrefix
from kvward.scope import ScopeIssuer
from kvward.scope.owner import OWNER_FIELD

WARM_PATH = "/kvward/warm"
"""For operators: {"prefix": NAME, "model": MODEL} computes a public prefix once."""

ENGINE_PATH = "/v1/completions"


class _WarmUp(msgspec.Struct, forbid_unknown_fields=True):
    prefix: str
    model: str


def write_warm_up(
    content: bytes,
    *,
    content_type: bytes,
    prefixes: Sequence[RegisteredPrefix],
    issuer: ScopeIssuer,
    owner_tags: bool,
) -> bytes:
    """Return the body of the engine's request.

    Raises:
        UsageError: The body is not understood, the prefix is not registered, or the keyring does
            not answer.
    """
    try:
        asked = msgspec.convert(
            {
                name: msgspec.json.decode(value)
                for name, value in parse_body(content, content_type=content_type).items()
            },
            _WarmUp,
        )
    except (msgspec.ValidationError, msgspec.DecodeError) as exc:
        raise UsageError('Write {"prefix": NAME, "model": MODEL}.') from exc
    prefix = next((known for known in prefixes if known.name == asked.prefix), None)
    if prefix is None:
        raise UsageError("No public prefix of this name is registered in the policy.")
    try:
        token = issuer.token(scope := prefix.scope(issuer))
        beside = {OWNER_FIELD: issuer.owner_tag(scope, token=token)} if owner_tags else {}
    except KeyringUnavailableError as exc:
        raise UsageError("The keyring does not answer; try again.") from exc
    return msgspec.json.encode(
        {
            "model": asked.model,
            "prompt": list(prefix.token_ids),
            "max_tokens": 1,
            "temperature": 0,
            "cache_salt": token,
            **({"kv_transfer_params": beside} if beside else {}),
        }
    )
