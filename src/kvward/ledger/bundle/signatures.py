"""Who signed: the keys that a bundle lists, and those that whoever verifies it trusts.

Everything signed in a bundle has to verify twice. By the keys that the bundle lists itself, which
shows that it agrees with itself; every signature in it has to be of one of them. And by a key that
was brought along from elsewhere, which alone shows whose it is.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from kvward.errors import BundleError, UsageError
from kvward.ledger.checkpoint import Checkpoint, open_checkpoint
from kvward.ledger.document import to_canonical_json
from kvward.ledger.dsse import (
    UnverifiedEnvelope,
    envelope_key_id,
    parse_unverified_envelope,
    verify_envelope,
)
from kvward.ledger.note import NoteVerifier, parse_unverified_note

MAX_KEYS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys that signatures of a bundle are verified with.

    Attributes:
        listed: By the bundle. [untrusted]
        trusted: By whoever verifies; empty where no key was given. [verified]
    """

    listed: tuple[NoteVerifier, ...]
    trusted: tuple[NoteVerifier, ...]

    def open_checkpoint(self, data: bytes) -> Checkpoint:
        """Return a checkpoint that verifies, by a trusted key where there are any.

        Raises:
            VerificationError: It does not.
        """
        known = {(key.name, key.key_id) for key in self.listed}
        lines = [(name, key_id) for name, key_id, _ in parse_unverified_note(data)[1]]
        if len(set(lines)) != len(lines) or not known.issuperset(lines):
            raise BundleError("The checkpoint has a signature of a key that the bundle lists not.")
        checkpoint = open_checkpoint(data, self.listed)
        if self.trusted:
            open_checkpoint(data, self.trusted)
        return checkpoint

    def open_envelope(self, data: bytes, *, payload_type: str) -> bytes:
        """Return the payload of an envelope that verifies, by a trusted key where there are any.

        Raises:
            VerificationError: It does not.
        """
        envelope = parse_unverified_envelope(data)
        if to_canonical_json(_plain(envelope)) != data:
            raise BundleError("An envelope is not in its one spelling.")
        named = {envelope_key_id(key.public_key) for key in self.listed}
        signers = [key_id for key_id, _ in envelope.signatures]
        if len(set(signers)) != len(signers) or not named.issuperset(signers):
            raise BundleError("An envelope has a signature of a key that the bundle lists not.")
        payload = verify_envelope(
            data, payload_type=payload_type, keys=self.listed, threshold=len(signers)
        ).payload
        if self.trusted:
            verify_envelope(data, payload_type=payload_type, keys=self.trusted)
        return payload


def render_keys(keys: Sequence[NoteVerifier]) -> bytes:
    """Return the file that lists keys: a verifier key on each line, sorted."""
    lines = sorted({key.to_text() for key in keys})
    return "".join(f"{line}\n" for line in lines).encode()


def parse_unverified_keys(data: bytes) -> tuple[NoteVerifier, ...]:
    """Read the keys that a bundle lists.

    Raises:
        BundleError: They are not listed in the one way there is, or not from 1 to 16.
    """
    try:
        keys = tuple(NoteVerifier.from_text(line) for line in data.decode().splitlines())
    except (UnicodeDecodeError, UsageError) as exc:
        raise BundleError("The bundle's list of keys has something else in it than keys.") from exc
    if render_keys(keys) != data or not 0 < len(keys) <= MAX_KEYS:
        raise BundleError(f"A bundle lists 1 to {MAX_KEYS} keys, each once and in order.")
    return keys


def _plain(envelope: UnverifiedEnvelope) -> object:
    return {
        "payload": base64.b64encode(envelope.unverified_payload).decode(),
        "payloadType": envelope.payload_type,
        "signatures": [
            {"keyid": key_id, "sig": base64.b64encode(signature).decode()}
            for key_id, signature in envelope.signatures
        ],
    }
