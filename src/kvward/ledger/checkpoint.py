"""Checkpoints: origin, size and root of a log, as the text of a signed note.

```
<origin>
<size, decimal>
<root, base64>
```

Source: C2SP tlog-checkpoint. Stricter than it: no extension lines, and a log is believed by a key
of its own name only.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvward.errors import CheckpointSignatureError, UsageError, VerificationError
from kvward.ledger.merkle import HASH_BYTES
from kvward.ledger.note import (
    NoteSigner,
    NoteVerifier,
    open_signed,
    parse_unverified_note,
    sign_note,
)

MAX_SIZE = 2**53 - 1
_ORIGIN = re.compile(r"[^\s+\x00-\x1f\x7f]{1,256}")
_SIZE = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A log at one moment.

    Attributes:
        origin: Name of the log, no spaces and no "+".
        size: Number of entries, at most 2^53 - 1.
        root: Root of the tree over them, 32 bytes.
    """

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        """Refuse values that no checkpoint could say."""
        if not _ORIGIN.fullmatch(self.origin):
            raise UsageError("An origin has no spaces and no +, and at most 256 characters.")
        if not 0 <= self.size <= MAX_SIZE or len(self.root) != HASH_BYTES:
            raise UsageError("A checkpoint has a size up to 2^53 - 1 and a root of 32 bytes.")

    def text(self) -> str:
        """Return what is signed: three lines."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode('ascii')}\n"


def parse_checkpoint(text: str) -> Checkpoint:
    """Read the text of a checkpoint. Each value has one spelling.

    Args:
        text: Of a note. [verified, or the result is not]
    Raises:
        VerificationError: It is not a checkpoint, or not spelled as one.
    """
    lines = text.split("\n")
    if len(lines) == 4 and _SIZE.fullmatch(lines[1]):
        try:
            root = base64.b64decode(lines[2], validate=True)
            checkpoint = Checkpoint(lines[0], int(lines[1]), root)
        except (binascii.Error, ValueError, UsageError):
            pass
        else:
            if checkpoint.text() == text:
                return checkpoint
    raise VerificationError("This is not a checkpoint: origin, size and root, a line each.")


def sign_checkpoint(checkpoint: Checkpoint, *signers: NoteSigner) -> bytes:
    """Return a checkpoint as a signed note.

    Raises:
        UsageError: Nobody signs, or somebody whose key is not named like the log.
    """
    if any(signer.name != checkpoint.origin for signer in signers):
        raise UsageError("A log's checkpoints are signed by keys that are named like the log.")
    return sign_note(checkpoint.text(), *signers)


def open_checkpoint(data: bytes, verifiers: Sequence[NoteVerifier]) -> Checkpoint:
    """Check a signed checkpoint and return what it says.

    Args:
        data: A note. [untrusted]
        verifiers: Keys of logs that are believed.
    Returns:
        The checkpoint. [verified]
    Raises:
        CheckpointSignatureError: None of the keys signed it, or only one of another log.
        VerificationError: What was signed is not a checkpoint.
    """
    text, signed = open_signed(data, verifiers)
    checkpoint = parse_checkpoint(text)
    if not any(verifier.name == checkpoint.origin for verifier in signed):
        raise CheckpointSignatureError(
            "The checkpoint of one log is signed with the key of another one.",
        )
    return checkpoint


def parse_unverified_checkpoint(data: bytes) -> Checkpoint:
    """Read a signed checkpoint without looking at who signed it. Nothing it says is verified.

    Raises:
        VerificationError: It is not a note with a checkpoint.
    """
    return parse_checkpoint(parse_unverified_note(data)[0])
