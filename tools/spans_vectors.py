"""Vectors of lists of spans, and of block names inside an engine."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

from kvward.blocks.chain import derive_resident_hash
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.scope.spans import Span, digest_tokens, encode_spans
from kvward.terms import SharingLevel

ROOT = RootKey(bytes(range(32)))
NONCE = bytes(range(100, 116))
EXPIRES = 1_800_000_060
NOW = 1_800_000_000
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def spans_vectors() -> dict[str, Any]:
    issuer, token, wide = _scopes(ROOT)
    other_issuer, other_token, other_wide = _scopes(RootKey(b"\x07" * 32))
    narrow = issuer.token(_scope(SharingLevel.USER))
    prompt = [1, 2, 3, 2**32 - 1, 0, 7]
    spans = [_span(wide, prompt, 2), _span(narrow, prompt, 4)]
    valid = [
        ("one span", [_span(wide, prompt, 2)], EXPIRES),
        ("two spans, wide to narrow", spans, EXPIRES),
        ("ends of the largest kind", [Span(token=wide, end_tokens=2**31 - 1, digest=bytes(32))],
         EXPIRES),
        ("as many as may be", [_span(wide, prompt * 2, end) for end in range(1, 9)], EXPIRES),
        ("good until now", [_span(wide, prompt, 2)], NOW),
    ]  # fmt: skip

    def sign(spans: list[Span], *, expires: int = EXPIRES, by: ScopeIssuer = issuer) -> Any:
        return encode_spans(
            by.token_key, token=token, spans=spans, expires_unix_s=expires, nonce=NONCE
        )

    good = sign(spans)
    must_fail: list[tuple[str, str, Any]] = [
        ("list of another request's token", narrow, good),
        ("list of another deployment", token, sign(spans, by=other_issuer)),
        ("token of another deployment inside", token, sign([_span(other_wide, prompt, 2)])),
        ("request's own token is another deployment's", other_token, good),
        ("expired one second ago", token, sign(spans, expires=NOW - 1)),
        ("two spans, narrow before wide in length", token, sign(spans[::-1])),
        ("two spans that end at one place", token, sign([spans[0], spans[0]])),
        ("no spans", token, sign([])),
        ("more than may be", token, sign([_span(wide, prompt * 2, end) for end in range(1, 10)])),
        ("a span without tokens", token, sign([_span(wide, prompt, 0)])),
        ("a digest of 31 bytes", token,
         sign([Span(token=wide, end_tokens=2, digest=bytes(31))])),
        ("an end of 32 bits", token,
         sign([Span(token=wide, end_tokens=2**31, digest=bytes(32))])),
        ("an end of true", token,
         _changed(good, lambda v: v["spans"][0].__setitem__(1, True))),
        ("an end of 2.0", token, _changed(good, lambda v: v["spans"][0].__setitem__(1, 2.0))),
        ("another end", token, _changed(good, lambda v: v["spans"][0].__setitem__(1, 1))),
        ("another expiry", token, good | {"expires": EXPIRES + 1}),
        ("an expiry as text", token, good | {"expires": str(EXPIRES)}),
        ("another nonce", token, good | {"nonce": "A" * 22}),
        ("a nonce with padding", token, good | {"nonce": str(good["nonce"]) + "=="}),
        ("a digest changed", token,
         _changed(good, lambda v: v["spans"][1].__setitem__(2, _turned(v["spans"][1][2])))),
        ("the other span's token", token,
         _changed(good, lambda v: v["spans"][0].__setitem__(0, narrow))),
        ("a span left out", token, _changed(good, lambda v: v["spans"].pop())),
        ("a MAC changed", token, good | {"mac": _turned(str(good["mac"]))}),
        ("a MAC with unused bits set", token, good | {"mac": _bits(str(good["mac"]))}),
        ("no MAC", token, _changed(good, lambda v: v.pop("mac"))),
        ("a field too many", token, good | {"version": 1}),
        ("nothing", token, None),
    ]  # fmt: skip
    return {
        "format": "kvward spans v1",
        "token_key": issuer.token_key.reveal().hex(),
        "digests": [
            {"id": number, "token_ids": ids, "digest": digest_tokens(ids).hex()}
            for number, ids in enumerate([[], [0], [0, 0], prompt, prompt[:3]], start=1)
        ],
        "valid": [
            {
                "id": number,
                "comment": comment,
                "token": token,
                "now": NOW,
                "list": sign(given, expires=expires),
                "spans": [
                    {"token": s.token, "end_tokens": s.end_tokens, "digest": s.digest.hex()}
                    for s in given
                ],
            }
            for number, (comment, given, expires) in enumerate(valid, start=1)
        ],
        "must_fail": [
            {"id": number, "comment": comment, "token": bad_token, "now": NOW, "list": value}
            for number, (comment, bad_token, value) in enumerate(must_fail, start=1)
        ],
    }


def resident_vectors() -> list[dict[str, Any]]:
    one, two = (hashlib.sha256(text).digest() for text in (b"one", b"two"))
    cases = [
        ("under a scope", one, "kw1.scope.0.mac"),
        ("another block", two, "kw1.scope.0.mac"),
        ("another scope", one, "kw1.scope.1.mac"),
        ("a scope of one request's own", one, "random-" + "00" * 16),
        ("empty scope", one, ""),
    ]
    return [
        {
            "id": number,
            "comment": comment,
            "chain_hash": chain_hash.hex(),
            "scope": scope,
            "resident_hash": derive_resident_hash(chain_hash, scope=scope).hex(),
        }
        for number, (comment, chain_hash, scope) in enumerate(cases, start=1)
    ]


def _scope(level: SharingLevel) -> Scope:
    subject = b"" if level is SharingLevel.TENANT else b"\x01" * 32
    return Scope(deployment="vectors", tenant="acme", level=level, subject=subject, epoch=0)


def _scopes(root: RootKey) -> tuple[ScopeIssuer, str, str]:
    issuer = ScopeIssuer.from_root_key(root, deployment="vectors")
    own = issuer.token(_scope(SharingLevel.CONVERSATION))
    return issuer, own, issuer.token(_scope(SharingLevel.TENANT))


def _span(token: str, prompt: list[int], end_tokens: int) -> Span:
    return Span(token=token, end_tokens=end_tokens, digest=digest_tokens(prompt[:end_tokens]))


def _changed(value: dict[str, Any], change: Callable[[Any], object]) -> Any:
    value = copy.deepcopy(value)
    change(value)
    return value


def _turned(text: str) -> str:
    return ("B" if text[0] == "A" else "A") + text[1:]


def _bits(text: str) -> str:
    return text[:-1] + _LETTERS[_LETTERS.index(text[-1]) ^ 1]
