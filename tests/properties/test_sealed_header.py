"""The header of a sealed block, for any bytes: refused with one error, or read without loss."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvward.errors import OpenError
from kvward.seal import OVERHEAD_BYTES, Header, OpenRefusal, Suite, parse_unverified_header
from kvward.seal.header import HEADER_BYTES, MAX_PLAIN_BYTES

FIELDS = [(0, 4), (4, 1), (5, 1), (6, 2), (8, 8), (16, 8), (24, 8), (32, 8), (40, 24)]
U64 = st.integers(0, 2**64 - 1)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    return Header(
        suite=Suite.XAES_256_GCM,
        key_id=draw(st.binary(min_size=8, max_size=8)),
        epoch=draw(U64),
        created_unix_s=draw(U64),
        plain_bytes=draw(st.integers(0, 300)),
        nonce=draw(st.binary(min_size=24, max_size=24)),
    )


def whole(header: Header) -> bytes:
    """Return a block of this header; its body is not looked at."""
    return header.to_bytes() + bytes(header.plain_bytes + OVERHEAD_BYTES - HEADER_BYTES)


def reason_of(data: bytes) -> str | None:
    try:
        header = parse_unverified_header(data)
    except OpenError as exc:
        assert str(exc) == "The sealed block does not open."
        assert exc.hint is None
        return exc.reason
    assert header.to_bytes() == data[:HEADER_BYTES]
    assert header.plain_bytes == len(data) - OVERHEAD_BYTES
    return None


@given(headers())
def test_what_is_written_is_read(header: Header) -> None:
    assert parse_unverified_header(whole(header)) == header
    assert parse_unverified_header(memoryview(bytearray(whole(header)))) == header


@given(st.binary(max_size=400))
@example(b"")
@example(b"kwsb" + bytes(76))
@example(b"kwsb\1\1" + bytes(74))
def test_any_bytes_are_refused_with_one_error_or_read_without_loss(data: bytes) -> None:
    reason = reason_of(data)
    assert reason is None or reason in set(OpenRefusal)


@given(headers(), st.sampled_from(FIELDS), st.data())
def test_any_other_value_of_a_field_is_refused_or_read_without_loss(
    header: Header, field: tuple[int, int], data: st.DataObject
) -> None:
    offset, size = field
    value = data.draw(st.binary(min_size=size, max_size=size))
    block = whole(header)
    changed = block[:offset] + value + block[offset + size :]
    early = {0: "not-a-block", 4: "version", 5: "suite", 6: "reserved", 32: "length"}
    expected = early.get(offset) if changed != block else None
    assert reason_of(changed) == expected


@given(headers(), st.integers(0, 400))
def test_any_other_length_is_refused(header: Header, length: int) -> None:
    block = whole(header)
    cut = (block + bytes(400))[:length]
    expected = None
    if length != len(block):
        expected = OpenRefusal.TOO_SHORT if length < OVERHEAD_BYTES else OpenRefusal.LENGTH
    assert reason_of(cut) == expected


@pytest.mark.parametrize("claimed", [MAX_PLAIN_BYTES, MAX_PLAIN_BYTES + 1, 2**63, 2**64 - 1])
def test_a_length_that_is_not_there_is_refused_before_memory_is_asked_for(claimed: int) -> None:
    block = bytearray(OVERHEAD_BYTES)
    block[:HEADER_BYTES] = Header(
        suite=Suite.XAES_256_GCM,
        key_id=bytes(8),
        epoch=0,
        created_unix_s=0,
        plain_bytes=claimed,
        nonce=bytes(24),
    ).to_bytes()
    assert reason_of(bytes(block)) == OpenRefusal.LENGTH
