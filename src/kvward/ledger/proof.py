"""Proofs about a log as files: one entry is in it, or it continues an earlier checkpoint.

A proof carries the signed checkpoint that it leads to, so that whoever has the verifier key needs
nothing else.

Source: docs/spec/ledger-v1.md, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kvward.errors import ForkError, UsageError, VerificationError
from kvward.ledger.checkpoint import Checkpoint, open_checkpoint, parse_unverified_checkpoint
from kvward.ledger.entry import Count, Digest, Entry, decode_entry
from kvward.ledger.merkle import (
    consistency_ranges,
    inclusion_ranges,
    leaf_hash,
    verify_consistency,
    verify_inclusion,
)
from kvward.ledger.note import NoteVerifier
from kvward.ledger.tiles import Edge, LogFolder, TileHashes

_Hashes = Annotated[list[Digest], Meta(max_length=64 * 2)]


class InclusionProof(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="kvward ledger inclusion 1",
):
    """Says that an entry stands at a place of a log.

    Attributes:
        index: Of the entry, from 0.
        entry: In its canonical spelling, as text.
        proof: Hashes from the entry's sibling upwards, hexadecimal.
        checkpoint: Signed note.
    """

    index: Count
    entry: str
    proof: _Hashes
    checkpoint: str


class ConsistencyProof(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="kvward ledger consistency 1",
):
    """Says that a log begins with what it was at an earlier size.

    Attributes:
        old_size, old_root: The earlier state; the root in hexadecimal.
        proof: Hashes in the order of RFC 6962, hexadecimal.
        checkpoint: Signed note of the later state.
    """

    old_size: Count
    old_root: Digest
    proof: _Hashes
    checkpoint: str


Proof = InclusionProof | ConsistencyProof

_DECODER = msgspec.json.Decoder(Proof)


def prove_inclusion(
    folder: Path, index: int, *, verifiers: Sequence[NoteVerifier] | None
) -> InclusionProof:
    """Prove that an entry is in the log, from a few of its tiles.

    Args:
        folder: Of the log. [untrusted]
        verifiers: Keys of the log; None leaves the signature to whoever checks the proof.
    Raises:
        UsageError: The log has no such entry.
        VerificationError: The files do not give a proof that holds.
    """
    log, note, checkpoint = _open(folder, verifiers)
    entry = log.read_entry(index, size=checkpoint.size)
    hashes = TileHashes(log, checkpoint.size)
    proof = [hashes.range_root(*leaves) for leaves in inclusion_ranges(index, checkpoint.size)]
    verify_inclusion(leaf_hash(entry), index, checkpoint.size, proof, checkpoint.root)
    decode_entry(entry)
    return InclusionProof(
        index=index,
        entry=entry.decode(),
        proof=[hashed.hex() for hashed in proof],
        checkpoint=note.decode(),
    )


def prove_consistency(
    folder: Path, old_size: int, *, verifiers: Sequence[NoteVerifier] | None
) -> ConsistencyProof:
    """Prove that the log begins with what it was at an earlier size.

    Args:
        folder, verifiers: As for `prove_inclusion`.
    Raises:
        UsageError: The log never had that size.
        VerificationError: The files do not give a proof that holds.
    """
    log, note, checkpoint = _open(folder, verifiers)
    size = checkpoint.size
    if not 0 <= old_size <= size:
        raise UsageError(f"The log has {size} entries; it never had {old_size}.")
    hashes = TileHashes(log, size)
    old_root = Edge(hashes.edge(old_size)).root()
    proof = [hashes.range_root(*leaves) for leaves in consistency_ranges(old_size, size)]
    verify_consistency(old_size, size, old_root, checkpoint.root, proof)
    return ConsistencyProof(
        old_size=old_size,
        old_root=old_root.hex(),
        proof=[hashed.hex() for hashed in proof],
        checkpoint=note.decode(),
    )


def encode_proof(proof: Proof) -> bytes:
    """Return a proof as JSON."""
    return msgspec.json.encode(proof, order="sorted")


def parse_unverified_proof(data: bytes) -> Proof:
    """Read a proof; nothing it says is verified yet.

    Raises:
        VerificationError: It is not a proof of this version.
    """
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise VerificationError("This is not a proof about a ledger.") from None


def verify_inclusion_proof(
    proof: InclusionProof, verifiers: Sequence[NoteVerifier]
) -> tuple[Entry, Checkpoint]:
    """Check a proof of inclusion; return the entry and the checkpoint that covers it.

    Args:
        proof: [untrusted]
        verifiers: Keys that are believed.
    Raises:
        CheckpointSignatureError: No given key signed the checkpoint.
        InclusionError: The proof does not lead from the entry to it.
        VerificationError: The entry is not one.
    """
    # (1) The checkpoint is signed. (2) The entry is in its tree. (3) It is an entry.
    checkpoint = open_checkpoint(proof.checkpoint.encode(), verifiers)
    data = proof.entry.encode()
    hashes = [bytes.fromhex(hashed) for hashed in proof.proof]
    verify_inclusion(leaf_hash(data), proof.index, checkpoint.size, hashes, checkpoint.root)
    return decode_entry(data), checkpoint


def verify_consistency_proof(
    proof: ConsistencyProof, verifiers: Sequence[NoteVerifier], known: Checkpoint | None
) -> Checkpoint:
    """Check a proof of consistency; return the later checkpoint.

    Args:
        proof: [untrusted]
        verifiers: Keys that are believed.
        known: The earlier checkpoint, from elsewhere; without it, the proof only says that the
            log once had the root which the proof itself names. [verified]
    Raises:
        CheckpointSignatureError: No given key signed the checkpoint.
        ConsistencyError: The proof does not lead to both roots.
        ForkError: It starts from another state than the known one.
    """
    # (1) The later checkpoint is signed.
    checkpoint = open_checkpoint(proof.checkpoint.encode(), verifiers)
    # (2) The earlier state is the known one.
    if known is not None and (known.origin, known.size, known.root.hex()) != (
        checkpoint.origin,
        proof.old_size,
        proof.old_root,
    ):
        raise ForkError("The proof starts from another state than the known checkpoint.")
    # (3) The proof leads from the one to the other.
    verify_consistency(
        proof.old_size,
        checkpoint.size,
        bytes.fromhex(proof.old_root),
        checkpoint.root,
        [bytes.fromhex(hashed) for hashed in proof.proof],
    )
    return checkpoint


def _open(
    folder: Path, verifiers: Sequence[NoteVerifier] | None
) -> tuple[LogFolder, bytes, Checkpoint]:
    log = LogFolder(folder)
    note = log.read_checkpoint()
    if verifiers is None:
        return log, note, parse_unverified_checkpoint(note)
    return log, note, open_checkpoint(note, verifiers)
