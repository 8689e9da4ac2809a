"""Which leading tokens of a prompt belong to wider scopes: decided at the edge, checked inside.

The gateway knows who asks and what of a prompt is the tenant's own; only the engine sees the tokens
that were really made of it. So the gateway names, for each span, where it ends and the digest of
all token ids up to there; the adapter computes the digest again and believes nothing else.

In `kv_transfer_params`, beside the owner tag, as JSON:

```
"kvward_spans": {"expires": 1790000000, "nonce": "…", "spans": [["kw1.…", 1000, "…"]], "mac": "…"}
```

The MAC covers the request's own token, too, so that a list fits one scope only. Format version 1,
never edited; `docs/spec/spans-v1.md`, `vectors/spans-v1.json`.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvward.errors import ScopeMismatchError
from kvward.scope.derive import derive_spans_mac
from kvward.scope.keys import TokenKey
from kvward.scope.token import decode_base64url, encode_base64url, verify_token

SPANS_FIELD = "kvward_spans"
"""Name of the list inside `kv_transfer_params`."""

SPANS_LIFETIME_S = 60
"""How long a list is good for: from the edge into the engine's queue."""

NONCE_BYTES = 16
_MAX_SPANS = 8
_MAX_TOKENS = 2**31 - 1
_MAX_UNIX_S = 2**53
_DIGEST_BYTES = 32
_FIELDS = {"expires", "nonce", "spans", "mac"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of leading tokens that belongs to a wider scope.

    Attributes:
        token: Of the wider scope.
        end_tokens: Where it ends, counted from the beginning of the prompt, at least 1.
        digest: `digest_tokens` of everything up to there, 32 bytes.
    """

    token: str
    end_tokens: int
    digest: bytes


def digest_tokens(token_ids: Sequence[int]) -> bytes:
    """Return the digest of leading token ids, 32 bytes; each 0 <= id < 2^32.

    Raises:
        ValueError: One is not.
    """
    try:
        packed = struct.pack(f">{len(token_ids)}I", *token_ids)
    except struct.error as exc:
        raise ValueError("A token id lies between 0 and 2^32 - 1.") from exc
    return hashlib.sha256(b"kvward/leading-tokens/v1\0" + packed).digest()


def encode_spans(
    token_key: TokenKey, *, token: str, spans: Sequence[Span], expires_unix_s: int, nonce: bytes
) -> dict[str, object]:
    """Write the list for a request.

    Args:
        token: The request's own.
        spans: From wide to narrow, each ending after the one before.
        nonce: 16 random bytes.
    """
    mac = derive_spans_mac(
        token_key,
        token=token,
        spans=[(span.token, span.end_tokens, span.digest) for span in spans],
        expires_unix_s=expires_unix_s,
        nonce=nonce,
    )
    return {
        "expires": expires_unix_s,
        "nonce": encode_base64url(nonce),
        "spans": [[s.token, s.end_tokens, encode_base64url(s.digest)] for s in spans],
        "mac": encode_base64url(mac),
    }


def verify_spans(
    value: object, *, token: str, token_key: TokenKey, now_unix_s: float
) -> tuple[Span, ...]:
    """Check a list of spans. Whether the digests fit the prompt is still to be seen.

    Args:
        value: Anything. [untrusted]
        token: The request's own, verified.
        token_key: The deployment's. [secret]
    Raises:
        ScopeMismatchError: It is not authentic for this token, has expired, or is out of order.
    """
    refused = ScopeMismatchError("The list of spans is not valid for this scope token.")
    if not isinstance(value, Mapping) or set(value) != _FIELDS:
        raise refused
    expires, nonce, mac = value["expires"], _bytes(value["nonce"]), _bytes(value["mac"])
    spans = _parse_unverified_spans(value["spans"])
    if type(expires) is not int or not 0 <= expires <= _MAX_UNIX_S:
        raise refused
    if nonce is None or mac is None or spans is None:
        raise refused
    expected = derive_spans_mac(
        token_key,
        token=token,
        spans=[(span.token, span.end_tokens, span.digest) for span in spans],
        expires_unix_s=expires,
        nonce=nonce,
    )
    if not hmac.compare_digest(expected, mac):
        raise refused
    if not now_unix_s <= expires:
        raise ScopeMismatchError("The list of spans has expired.")
    for span in spans:
        verify_token(span.token, token_key=token_key)
    ends = [0, *(span.end_tokens for span in spans)]
    if any(end <= before for before, end in pairwise(ends)):
        raise refused
    return spans


def _parse_unverified_spans(value: object) -> tuple[Span, ...] | None:
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_SPANS:
        return None
    spans = []
    for item in value:
        if not isinstance(item, list) or len(item) != 3:
            return None
        token, end_tokens, digest = item[0], item[1], _bytes(item[2])
        if not isinstance(token, str) or not token.isascii() or type(end_tokens) is not int:
            return None
        if digest is None or len(digest) != _DIGEST_BYTES or not 0 < end_tokens <= _MAX_TOKENS:
            return None
        spans.append(Span(token=token, end_tokens=end_tokens, digest=digest))
    return tuple(spans)


def _bytes(value: object) -> bytes | None:
    return decode_base64url(value) if isinstance(value, str) and value.isascii() else None
