"""Documents that could be read in two ways are refused."""

from __future__ import annotations

import pytest

from kvward.errors import DocumentError
from kvward.ledger.document import (
    decode_base64,
    parse_unverified_object,
    sha256_hex,
    to_canonical_json,
)


def test_object_comes_back_as_it_was_written() -> None:
    value = {"a": [1, 2.5, None, True, "\N{SNOWMAN}"], "b": {"c": "\\u"}}
    assert parse_unverified_object(to_canonical_json(value), what="it") == value
    assert parse_unverified_object(b'{"a":"\\u2603"}', what="it") == {"a": "\N{SNOWMAN}"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"1",
        b"{",
        b'{"a":1,"a":1}',
        b'{"b":{"a":1,"a":2}}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5_000 + b"}",
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"\\ud800":1}',
        b"\xef\xbb\xbf{}",
        b"{}x",
        b'{"a":' + b"[" * 65 + b"]" * 65 + b"}",
        b"[" * 1_000_000,
    ],
)
def test_what_reads_in_two_ways_or_in_none_is_refused(data: bytes) -> None:
    with pytest.raises(DocumentError):
        parse_unverified_object(data, what="the manifest")


def test_message_names_what_it_should_be() -> None:
    with pytest.raises(DocumentError, match="The manifest has more than 3 bytes"):
        parse_unverified_object(b'{"a":1}', what="the manifest", max_bytes=3)


@pytest.mark.parametrize("text", [None, 1, "YQ", "YR==", "YQ==\n", " YQ==", "YQ=", "_w==", "\xe9"])
def test_base64_has_one_spelling(text: object) -> None:
    assert decode_base64("YQ==", what="it") == b"a"
    with pytest.raises(DocumentError):
        decode_base64(text, what="it")


def test_digest_is_hexadecimal() -> None:
    assert sha256_hex(b"").startswith("e3b0c442")
