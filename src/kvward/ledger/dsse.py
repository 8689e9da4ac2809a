"""DSSE envelopes with Ed25519: a payload, its type, and signatures over both.

```
signed bytes = "DSSEv1" SP len(type) SP type SP len(payload) SP payload     lengths in decimal
envelope     = {"payload": base64, "payloadType": text, "signatures": [{"keyid", "sig"}, ...]}
```

What is in an envelope is handed out by `verify_envelope` alone, after a signature has verified. A
key id is a hint at which key to try and decides nothing; ours are those that securesystemslib
works out by default, so that its users find the key.

A checkpoint is signed by the same kind of key. The two can never be taken for each other: what a
note signs begins with an origin, which holds no space, and an envelope with "DSSEv1 ".

Source: DSSE v1.0.2, protocol and envelope.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from kvward.errors import DocumentError, EnvelopeError, UsageError
from kvward.ledger.document import (
    decode_base64,
    parse_unverified_object,
    sha256_hex,
    to_canonical_json,
)
from kvward.ledger.note import NoteSigner, NoteVerifier

MAX_SIGNATURES = 16
MAX_PAYLOAD_BYTES = 8 << 20
_MAX_ENVELOPE_BYTES = 2 * MAX_PAYLOAD_BYTES
_SIGNATURE_BYTES = 64


def envelope_key_id(public_key: bytes) -> str:
    """Return the key id of an Ed25519 key: the SHA-256 of its canonical JSON description, in hex.

    Args:
        public_key: 32 bytes, RFC 8032.
    """
    keyval = {"public": public_key.hex()}
    return sha256_hex(
        to_canonical_json({"keytype": "ed25519", "scheme": "ed25519", "keyval": keyval})
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedEnvelope:
    """An envelope that was read; nobody has checked who signed it.

    Attributes:
        signatures: Key id, empty where none is given, and signature of 64 bytes.
    """

    unverified_payload: bytes
    payload_type: str
    signatures: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPayload:
    """A payload, and the accepted keys that signed it; at least one."""

    payload: bytes
    signers: tuple[NoteVerifier, ...]


def encode_signed(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that a signature covers: type and payload with their lengths."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign_envelope(payload: bytes, payload_type: str, *, signers: Sequence[NoteSigner]) -> bytes:
    """Return an envelope as JSON, signed by each signer in their order.

    Raises:
        UsageError: There is no signer, one is given twice, or the payload is too large.
    """
    message = encode_signed(payload_type, payload)
    key_ids = [envelope_key_id(signer.verifier.public_key) for signer in signers]
    if not 0 < len(set(key_ids)) == len(key_ids) <= MAX_SIGNATURES:
        raise UsageError(f"An envelope is signed by 1 to {MAX_SIGNATURES} different keys.")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise UsageError(f"An envelope holds at most {MAX_PAYLOAD_BYTES} bytes.")
    signatures = [
        {"keyid": key_id, "sig": base64.b64encode(signer.sign(message)).decode()}
        for key_id, signer in zip(key_ids, signers, strict=True)
    ]
    return to_canonical_json(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": signatures,
        }
    )


def parse_unverified_envelope(data: bytes) -> UnverifiedEnvelope:
    """Read an envelope. Members that DSSE does not know are passed over, as it asks.

    Args:
        data: JSON. [untrusted]
    Raises:
        EnvelopeError: It is none, is too large, or has no signature or too many.
    """
    try:
        return _parse(data)
    except DocumentError as exc:
        raise EnvelopeError(exc.message) from exc


def verify_envelope(
    data: bytes, *, payload_type: str, keys: Sequence[NoteVerifier], threshold: int = 1
) -> VerifiedPayload:
    """Return an envelope's payload if enough of the accepted keys signed it.

    Every signature counts once for one key. Signatures of other keys are passed over, since
    anybody may add one.

    Args:
        data: JSON. [untrusted]
        payload_type: What the payload has to be.
        keys: The keys that are accepted. [verified]
        threshold: How many different ones have to have signed.
    Raises:
        EnvelopeError: It is no envelope, of another type, or too few accepted keys signed it.
        UsageError: No number of signatures could reach the threshold.
    """
    if not 0 < threshold <= len({key.public_key for key in keys}):
        raise UsageError("The threshold is 1 at least, and there are as many keys.")
    envelope = parse_unverified_envelope(data)
    # The type is compared before a signature is, and it is part of what is signed.
    if envelope.payload_type != payload_type:
        raise EnvelopeError("The envelope holds something else than it should.")
    message = encode_signed(payload_type, envelope.unverified_payload)
    # One key under two names is one key.
    different = {key.public_key: key for key in keys}.values()
    signers = tuple(key for key in different if _has_signed(key, message, envelope))
    if len(signers) < threshold:
        raise EnvelopeError(
            "The envelope is not signed by a key that is accepted, or it was changed.",
            hint="Check that the key is the one its owner publishes.",
        )
    return VerifiedPayload(payload=envelope.unverified_payload, signers=signers)


def _parse(data: bytes) -> UnverifiedEnvelope:
    value = parse_unverified_object(data, what="the envelope", max_bytes=_MAX_ENVELOPE_BYTES)
    payload = decode_base64(value.get("payload"), what="the envelope's payload")
    kind, listed = value.get("payloadType"), value.get("signatures")
    if not isinstance(kind, str) or not isinstance(listed, list):
        raise DocumentError("The envelope lacks a payload type or signatures.")
    if not 0 < len(listed) <= MAX_SIGNATURES:
        raise DocumentError(f"An envelope has 1 to {MAX_SIGNATURES} signatures.")
    signatures = tuple(_parse_signature(item) for item in listed)
    return UnverifiedEnvelope(unverified_payload=payload, payload_type=kind, signatures=signatures)


def _has_signed(key: NoteVerifier, message: bytes, envelope: UnverifiedEnvelope) -> bool:
    named = {"", envelope_key_id(key.public_key)}
    return any(
        key.verify(message, signature)
        for key_id, signature in envelope.signatures
        if key_id in named
    )


def _parse_signature(item: object) -> tuple[str, bytes]:
    if not isinstance(item, dict) or not isinstance(item.get("keyid", ""), str):
        raise DocumentError("A signature of the envelope is not in the form that it should have.")
    signature = decode_base64(item.get("sig"), what="a signature of the envelope")
    if len(signature) != _SIGNATURE_BYTES:
        raise DocumentError(f"A signature of the envelope does not have {_SIGNATURE_BYTES} bytes.")
    return item.get("keyid", ""), signature
