"""Signed notes: text, and below it lines with signatures of Ed25519.

```
text, whose last line ends with a newline
                                                    an empty line
— <key name> <base64 of: key id, 4 bytes | signature, 64 bytes>
```

A note may bear several signatures. Lines of keys that nobody asked about are passed over, so a
witness may add its own; a line of a key that was asked about has to verify.

Source: C2SP signed-note v1.0.0, signature type 1; the text form of private keys is that of Go's
sumdb/note, so that other tools read it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Never, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kvward.errors import CheckpointSignatureError, UsageError

MAX_NOTE_BYTES = 1 << 20
MAX_SIGNATURES = 64
_KEY_BYTES = 32
_SIGNATURE_BYTES = 64
_ID_BYTES = 4
_ED25519 = b"\x01"
_DASH = "\u2014 "
_PRIVATE = "PRIVATE+KEY+"
# Spaces of any kind and "+" may not be in a key's name; control characters in no part of a note.
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f]{1,256}")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")


class Signature(NamedTuple):
    """One line below a note's text.

    Attributes:
        name: Of the key.
        key_id: 4 bytes.
        signature: As many bytes as the key's algorithm makes.
    """

    name: str
    key_id: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteVerifier:
    """A public key with a name: who is believed.

    Attributes:
        name: Of the key; for a log, its origin.
        public_key: Ed25519, 32 bytes.
    """

    name: str
    public_key: bytes

    def __post_init__(self) -> None:
        """Refuse a name or a key that no note could bear."""
        _check_name(self.name)
        if len(self.public_key) != _KEY_BYTES:
            raise UsageError(f"A public key has {_KEY_BYTES} bytes.")

    @property
    def key_id(self) -> bytes:
        """Return the 4 bytes that stand for this key in a signature line."""
        hashed = hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public_key)
        return hashed.digest()[:_ID_BYTES]

    def to_text(self) -> str:
        """Return the verifier key: name, id and key in one line."""
        return f"{self.name}+{self.key_id.hex()}+{_base64(_ED25519 + self.public_key)}"

    @classmethod
    def from_text(cls, text: str) -> NoteVerifier:
        """Read a verifier key.

        Args:
            text: From the operator, by a way that is trusted; no spaces around it.
        Raises:
            UsageError: It is not the verifier key of an Ed25519 key.
        """
        name, key_id, public_key = _parse_key_text(text, "verifier key")
        verifier = cls(name=name, public_key=public_key)
        if verifier.key_id != key_id:
            raise UsageError("The verifier key does not agree with its own hash: it was changed.")
        return verifier

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Return whether this key made the signature."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, message)
        except InvalidSignature:
            return False
        return True


@final
class NoteSigner:
    """A private key with a name: who signs.

    Args:
        name: Of the key; for a log, its origin.
        seed: Exactly 32 bytes. [secret]
    Raises:
        UsageError: The name or the seed is not one.
    Security:
        `repr` shows the name only; comparing, hashing, pickling and copying are errors.
    """

    __slots__ = ("_key", "_seed", "_verifier")

    def __init__(self, name: str, seed: bytes) -> None:
        if len(seed) != _KEY_BYTES:
            raise UsageError(f"The seed of a signing key has {_KEY_BYTES} bytes.")
        self._seed = bytes(seed)
        self._key = Ed25519PrivateKey.from_private_bytes(self._seed)
        public_key = self._key.public_key().public_bytes_raw()
        self._verifier = NoteVerifier(name=name, public_key=public_key)

    @classmethod
    def generate(cls, name: str) -> NoteSigner:
        """Return a fresh key."""
        return cls(name, os.urandom(_KEY_BYTES))

    @classmethod
    def from_text(cls, text: str) -> NoteSigner:
        """Read what `reveal` returned.

        Raises:
            UsageError: It is not a private key. The message does not repeat it.
        """
        if not text.startswith(_PRIVATE):
            raise UsageError("This is not a private key of a signer of notes.")
        name, key_id, seed = _parse_key_text(text[len(_PRIVATE) :], "private key")
        signer = cls(name, seed)
        if signer.verifier.key_id != key_id:
            raise UsageError("The private key does not agree with its own hash: it was changed.")
        return signer

    @property
    def name(self) -> str:
        """Return the key's name."""
        return self._verifier.name

    @property
    def verifier(self) -> NoteVerifier:
        """Return the public key."""
        return self._verifier

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes."""
        return self._key.sign(message)

    def reveal(self) -> str:
        """Return the private key as a line of text, for a file that nobody else reads. [secret]"""
        key_id = self._verifier.key_id.hex()
        return f"{_PRIVATE}{self.name}+{key_id}+{_base64(_ED25519 + self._seed)}"

    def matches(self, other: NoteSigner) -> bool:
        """Compare in constant time."""
        return self.name == other.name and hmac.compare_digest(self._seed, other._seed)

    def __repr__(self) -> str:
        return f"<NoteSigner {self.name}>"

    def __eq__(self, other: object) -> bool:
        raise TypeError("Signers are compared with matches().")

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Never:
        raise TypeError("Signers cannot be pickled or copied.")

    def __copy__(self) -> Never:
        raise TypeError("Signers cannot be copied.")

    def __deepcopy__(self, memo: object) -> Never:
        raise TypeError("Signers cannot be copied.")


def sign_note(text: str, *signers: NoteSigner) -> bytes:
    """Return a note with the signatures of one or more signers.

    Args:
        text: Ends with a newline; no other control character.
    Raises:
        UsageError: The text cannot be a note's, or nobody signs.
    """
    if not text.endswith("\n") or _CONTROL.search(text):
        raise UsageError("The text of a note ends with a newline, its only control character.")
    if not signers:
        raise UsageError("A note needs a signer.")
    message = text.encode()
    lines = [
        f"{_DASH}{signer.name} {_base64(signer.verifier.key_id + signer.sign(message))}\n"
        for signer in signers
    ]
    return message + b"\n" + "".join(lines).encode()


def open_note(data: bytes, verifiers: Sequence[NoteVerifier]) -> str:
    """Check a note and return its text.

    Args:
        data: [untrusted]
        verifiers: Who is believed; one of them is enough.
    Returns:
        The text, with its last newline. [verified]
    Raises:
        CheckpointSignatureError: It is not a note, none of these keys signed it, or a signature in
            the name of one of them is not its.
    """
    return open_signed(data, verifiers)[0]


def open_signed(data: bytes, verifiers: Sequence[NoteVerifier]) -> tuple[str, list[NoteVerifier]]:
    """Check a note; return its text and which of the verifiers signed it. See `open_note`."""
    # (1) It has the form of a note.
    text, signatures = parse_unverified_note(data)
    message = text.encode()
    known = {(verifier.name, verifier.key_id): verifier for verifier in verifiers}
    signed: list[NoteVerifier] = []
    for name, key_id, signature in signatures:
        verifier = known.get((name, key_id))
        if verifier is None:
            continue  # (2) Lines of unknown keys say nothing, for or against.
        # (3) Every line in the name of a known key is by that key.
        if not verifier.verify(message, signature):
            raise CheckpointSignatureError(
                f"The signature of {name} does not fit: the text or the signature was changed."
            )
        if verifier not in signed:
            signed.append(verifier)
    # (4) There is one at least.
    if not signed:
        raise CheckpointSignatureError(
            "None of the given keys signed this.",
            hint="Compare the name and the id of the verifier key with the last lines.",
        )
    return text, signed


def parse_unverified_note(data: bytes) -> tuple[str, list[Signature]]:
    """Take a note apart. Nothing is checked but its form.

    Raises:
        CheckpointSignatureError: It is not a note.
    """
    if len(data) > MAX_NOTE_BYTES:
        raise CheckpointSignatureError("The note is too long.")
    try:
        note = data.decode()
    except UnicodeDecodeError:
        raise CheckpointSignatureError("The note is not UTF-8.") from None
    text, gap, below = note.rpartition("\n\n")
    if not gap or _CONTROL.search(note) or not below.endswith("\n"):
        raise CheckpointSignatureError("This is not a signed note.")
    lines = below[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise CheckpointSignatureError(f"The note has more than {MAX_SIGNATURES} signatures.")
    return text + "\n", [_parse_line(line) for line in lines]


def _parse_line(line: str) -> Signature:
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if line.startswith(_DASH) and space and _NAME.fullmatch(name):
        decoded = _unbase64(encoded)
        if decoded is not None and len(decoded) > _ID_BYTES:
            return Signature(name, decoded[:_ID_BYTES], decoded[_ID_BYTES:])
    raise CheckpointSignatureError("The note has a line below its text that is no signature.")


def _parse_key_text(text: str, what: str) -> tuple[str, bytes, bytes]:
    """Return name, key id and the 32 bytes of a key in its text form."""
    parts = text.split("+", 2)
    if len(parts) == 3 and re.fullmatch(r"[0-9a-f]{8}", parts[1]):
        decoded = _unbase64(parts[2])
        if decoded is not None and len(decoded) == 1 + _KEY_BYTES and decoded[:1] == _ED25519:
            return parts[0], bytes.fromhex(parts[1]), decoded[1:]
    raise UsageError(f"This is not the {what} of an Ed25519 key.", hint="It reads NAME+ID+BASE64.")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError("The name of a key has no spaces and no +, and at most 256 characters.")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unbase64(text: str) -> bytes | None:
    """Decode standard base64 in its one spelling; None for every other."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return decoded if _base64(decoded) == text else None
