"""The vectors of spans, and of block names inside an engine, by a second implementation."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from kvward.canonical import encode
from kvward.errors import ScopeMismatchError
from kvward.scope import TokenKey
from kvward.scope.spans import Span, digest_tokens, encode_spans, verify_spans

FOLDER = Path(__file__).parents[2] / "vectors"
SPANS = json.loads((FOLDER / "spans-v1.json").read_text(encoding="utf-8"))
CHAIN = json.loads((FOLDER / "chain-v1.json").read_text(encoding="utf-8"))
KEY = bytes.fromhex(SPANS["token_key"])


def unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def by_comment(case: dict[str, Any]) -> str:
    return str(case["comment"])


@pytest.mark.parametrize("case", SPANS["digests"], ids=lambda case: str(case["id"]))
def test_digest_of_leading_tokens_matches_its_vector(case: dict[str, Any]) -> None:
    packed = b"".join(token.to_bytes(4, "big") for token in case["token_ids"])
    made = hashlib.sha256(b"kvward/leading-tokens/v1" + b"\x00" + packed).hexdigest()
    assert made == case["digest"] == digest_tokens(case["token_ids"]).hex()


@pytest.mark.parametrize("case", SPANS["valid"], ids=by_comment)
def test_mac_of_a_list_matches_its_vector(case: dict[str, Any]) -> None:
    given = case["list"]
    fields: list[Any] = [[token, end, unpadded(digest)] for token, end, digest in given["spans"]]
    message = encode(
        "kvward/spans/v1", case["token"], fields, given["expires"], unpadded(given["nonce"])
    )
    assert hmac.new(KEY, message, hashlib.sha256).digest() == unpadded(given["mac"])


@pytest.mark.parametrize("case", SPANS["valid"], ids=by_comment)
def test_valid_list_verifies_and_is_written_the_same_way(case: dict[str, Any]) -> None:
    spans = verify_spans(
        case["list"], token=case["token"], token_key=TokenKey(KEY), now_unix_s=case["now"]
    )
    assert list(spans) == [
        Span(token=s["token"], end_tokens=s["end_tokens"], digest=bytes.fromhex(s["digest"]))
        for s in case["spans"]
    ]
    assert case["list"] == encode_spans(
        TokenKey(KEY),
        token=case["token"],
        spans=spans,
        expires_unix_s=case["list"]["expires"],
        nonce=unpadded(case["list"]["nonce"]),
    )


@pytest.mark.parametrize("case", SPANS["must_fail"], ids=by_comment)
def test_list_that_must_fail_fails(case: dict[str, Any]) -> None:
    with pytest.raises(ScopeMismatchError):
        verify_spans(
            case["list"], token=case["token"], token_key=TokenKey(KEY), now_unix_s=case["now"]
        )


@pytest.mark.parametrize("case", CHAIN["resident"], ids=by_comment)
def test_name_inside_an_engine_matches_its_vector(case: dict[str, Any]) -> None:
    message = encode("kvward/resident-block/v1", case["scope"], bytes.fromhex(case["chain_hash"]))
    assert hashlib.sha256(message).hexdigest() == case["resident_hash"]


def test_names_inside_an_engine_all_differ() -> None:
    names = {case["resident_hash"] for case in CHAIN["resident"]}
    assert len(names) == len(CHAIN["resident"]) >= 5
