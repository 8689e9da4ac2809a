"""XAES-256-GCM against its published vectors, and what must not open."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvward.errors import OpenError
from kvward.seal.xaes import TAG_BYTES, XAES256GCM

NONCE = b"ABCDEFGHIJKLMNOPQRSTUVWX"


def seal(key: bytes, nonce: bytes, plaintext: bytes, associated_data: bytes) -> bytes:
    out = bytearray(len(plaintext) + TAG_BYTES)
    XAES256GCM(key).seal_into(nonce, plaintext, associated_data, out)
    return bytes(out)


def open_sealed(key: bytes, nonce: bytes, ciphertext: bytes, associated_data: bytes) -> bytes:
    out = bytearray(max(0, len(ciphertext) - TAG_BYTES))
    XAES256GCM(key).open_into(nonce, ciphertext, associated_data, out)
    return bytes(out)


@pytest.mark.parametrize(
    ("key", "associated_data", "ciphertext"),
    [
        (b"\x01" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (
            b"\x03" * 32,
            b"c2sp.org/XAES-256-GCM",
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    ],
    ids=["first half of the derivation", "second half of the derivation"],
)
def test_published_vectors_hold(key: bytes, associated_data: bytes, ciphertext: str) -> None:
    assert seal(key, NONCE, b"XAES-256-GCM", associated_data).hex() == ciphertext
    opened = open_sealed(key, NONCE, bytes.fromhex(ciphertext), associated_data)
    assert opened == b"XAES-256-GCM"


def test_accumulated_vector_holds() -> None:
    """10,000 random inputs from SHAKE128, hashed together: the specification's own check."""
    stream = hashlib.shake_128().digest(4_000_000)
    place = 0

    def take(count: int) -> bytes:
        nonlocal place
        place += count
        return stream[place - count : place]

    accumulated = hashlib.shake_128()
    for _ in range(10_000):
        key, nonce = take(32), take(24)
        plaintext = take(take(1)[0])
        associated_data = take(take(1)[0])
        accumulated.update(seal(key, nonce, plaintext, associated_data))
    assert accumulated.hexdigest(32) == (
        "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"
    )


@given(
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=24, max_size=24),
    st.binary(max_size=100),
    st.binary(max_size=30),
    st.data(),
)
def test_what_was_sealed_opens_and_nothing_else_does(
    key: bytes, nonce: bytes, plaintext: bytes, associated_data: bytes, data: st.DataObject
) -> None:
    sealed = seal(key, nonce, plaintext, associated_data)
    assert len(sealed) == len(plaintext) + TAG_BYTES
    assert open_sealed(key, nonce, sealed, associated_data) == plaintext
    parts = [key, nonce, sealed, associated_data]
    which = data.draw(st.integers(0, 3))
    if parts[which]:
        at = data.draw(st.integers(0, len(parts[which]) - 1))
        flipped = bytearray(parts[which])
        flipped[at] ^= 1 << data.draw(st.integers(0, 7))
        parts[which] = bytes(flipped)
    else:
        parts[which] = b"\0"
    with pytest.raises(OpenError) as caught:
        open_sealed(*parts)
    assert str(caught.value) == "The sealed bytes do not open."


@pytest.mark.parametrize(
    ("key", "nonce"), [(b"k" * 31, NONCE), (b"k" * 16, NONCE), (b"k" * 32, NONCE[:12]), (b"", b"")]
)
def test_wrong_lengths_are_refused(key: bytes, nonce: bytes) -> None:
    with pytest.raises(ValueError, match="XAES-256-GCM takes"):
        seal(key, nonce, b"", b"")
    with pytest.raises(ValueError, match="XAES-256-GCM takes"):
        open_sealed(key, nonce, bytes(TAG_BYTES), b"")


@pytest.mark.parametrize("length", [0, 1, 15])
def test_ciphertext_shorter_than_its_tag_does_not_open(length: int) -> None:
    with pytest.raises(OpenError):
        open_sealed(b"k" * 32, NONCE, b"x" * length, b"")
