"""Envelopes: what they sign, what they refuse, and that another implementation agrees."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, SSlibKey

from kvward.errors import EnvelopeError, UsageError
from kvward.ledger.dsse import (
    MAX_PAYLOAD_BYTES,
    encode_signed,
    envelope_key_id,
    parse_unverified_envelope,
    sign_envelope,
    verify_envelope,
)
from kvward.ledger.note import NoteSigner, NoteVerifier

KIND = "application/vnd.in-toto+json"
ONE, TWO = (NoteSigner("audit.example", bytes([n]) * 32) for n in (1, 2))
ENVELOPE = sign_envelope(b'{"a":1}', KIND, signers=[ONE])


def opened(data: bytes, *keys: NoteVerifier, threshold: int = 1) -> bytes:
    return verify_envelope(
        data, payload_type=KIND, keys=keys or (ONE.verifier,), threshold=threshold
    ).payload


def edited(**changes: Any) -> bytes:
    value = json.loads(ENVELOPE)
    value |= changes
    return json.dumps(value).encode()


def test_signed_bytes_are_those_of_the_protocol() -> None:
    # The example of the protocol's own description.
    assert encode_signed("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert encode_signed("\N{GREEK SMALL LETTER ALPHA}", b"") == b"DSSEv1 2 \xce\xb1 0 "


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.text(max_size=30), st.binary(min_size=32, max_size=32))
def test_securesystemslib_verifies_what_is_signed_here(
    payload: bytes, kind: str, seed: bytes
) -> None:
    signer = NoteSigner("audit.example", seed)
    data = sign_envelope(payload, kind, signers=[signer])
    theirs = Envelope.from_dict(json.loads(data))
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    key = SSlibKey.from_crypto(public)
    assert key.keyid == envelope_key_id(signer.verifier.public_key)
    assert theirs.payload == payload
    assert theirs.pae() == encode_signed(kind, payload)
    assert theirs.verify([key], 1) == {key.keyid: key}


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.binary(min_size=32, max_size=32))
def test_what_securesystemslib_signs_is_verified_here(payload: bytes, seed: bytes) -> None:
    theirs = Envelope(payload, KIND, {})
    theirs.sign(CryptoSigner(Ed25519PrivateKey.from_private_bytes(seed)))
    key = NoteSigner("audit.example", seed).verifier
    assert opened(json.dumps(theirs.to_dict()).encode(), key) == payload


def test_payload_comes_out_only_with_an_accepted_signature() -> None:
    assert opened(ENVELOPE) == b'{"a":1}'
    with pytest.raises(EnvelopeError):
        opened(ENVELOPE, TWO.verifier)
    with pytest.raises(EnvelopeError):
        verify_envelope(ENVELOPE, payload_type="text/plain", keys=[ONE.verifier])


def test_threshold_counts_keys_and_not_signatures() -> None:
    both = sign_envelope(b"x", KIND, signers=[ONE, TWO])
    result = verify_envelope(
        both, payload_type=KIND, keys=[TWO.verifier, ONE.verifier], threshold=2
    )
    assert set(result.signers) == {ONE.verifier, TWO.verifier}
    twice = json.loads(sign_envelope(b"x", KIND, signers=[ONE]))
    twice["signatures"] *= 2
    with pytest.raises(EnvelopeError):
        opened(json.dumps(twice).encode(), ONE.verifier, TWO.verifier, threshold=2)
    with pytest.raises(UsageError):
        opened(both, ONE.verifier, ONE.verifier, threshold=2)
    with pytest.raises(UsageError):
        opened(both, threshold=0)


def test_foreign_signatures_and_members_are_passed_over() -> None:
    both = sign_envelope(b"x", KIND, signers=[TWO, ONE])
    assert opened(both) == b"x"
    assert opened(edited(more=[1])) == b'{"a":1}'
    value = json.loads(ENVELOPE)
    del value["signatures"][0]["keyid"]
    assert opened(json.dumps(value).encode()) == b'{"a":1}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nothing",
        b"\xff{}",
        b"[" * 100_000,
        b'{"payload":"","payload":"","payloadType":"t","signatures":[]}',
        edited(payload=1),
        edited(payload="eyJhIjoxfR=="),
        edited(payload="eyJhIjoxfQ"),
        edited(payload="eyJhIjoxfQ==\n"),
        edited(payloadType=None),
        edited(signatures=[]),
        edited(signatures={}),
        edited(signatures=[1]),
        edited(signatures=[{"keyid": 1, "sig": base64.b64encode(bytes(64)).decode()}]),
        edited(signatures=[{"sig": base64.b64encode(bytes(63)).decode()}]),
        edited(signatures=[{"keyid": "x"}]),
        edited(signatures=[{"sig": base64.b64encode(bytes(64)).decode()}] * 17),
        edited(more=float("nan")),
    ],
)
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        parse_unverified_envelope(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_changed_envelope_gives_another_payload(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ENVELOPE) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = ENVELOPE[:at] + bytes([byte]) + ENVELOPE[at + 1 :]
    try:
        assert opened(changed) == b'{"a":1}'
    except EnvelopeError:
        assert changed != ENVELOPE


def test_an_envelope_has_signers_and_each_once() -> None:
    with pytest.raises(UsageError):
        sign_envelope(b"", KIND, signers=[])
    with pytest.raises(UsageError):
        sign_envelope(b"", KIND, signers=[ONE, ONE])
    with pytest.raises(UsageError):
        sign_envelope(bytes(MAX_PAYLOAD_BYTES + 1), KIND, signers=[ONE])


def test_one_key_under_two_names_counts_once() -> None:
    again = NoteVerifier(name="other.example", public_key=ONE.verifier.public_key)
    with pytest.raises(UsageError):
        opened(ENVELOPE, ONE.verifier, again, threshold=2)
