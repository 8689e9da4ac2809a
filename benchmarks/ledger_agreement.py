"""Heads, proofs and signatures of random logs, compared with those of other libraries.

Usage: python -m benchmarks.ledger_agreement --logs 10000 --seed 1 --json FILE
Trees are compared with pymerkle's. Proofs of inclusion are the same hashes, and each side checks
the other's; proofs of consistency are checked against the other's heads.
Signatures are compared with PyNaCl's, both ways as well. Ends with 1 at the first disagreement.
"""

from __future__ import annotations

import argparse
import base64
import json
import platform
import random
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import nacl.exceptions
import nacl.signing
import pymerkle

from kvward import __version__
from kvward.errors import VerificationError
from kvward.ledger.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from kvward.ledger.merkle import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from kvward.ledger.note import NoteSigner, NoteVerifier

_LARGEST = 600
_PROOFS = 4


@dataclass(kw_only=True)
class Compared:
    """What was compared in one log, and what did not agree."""

    size: int = 0
    heads: int = 0
    inclusion_proofs: int = 0
    consistency_proofs: int = 0
    notes: int = 0
    disagreements: list[str] = field(default_factory=list)


def compare_log(rng: random.Random) -> Compared:
    """Make one random log with both libraries and compare all that they say of it."""
    # As many small logs as large ones: their shapes differ most.
    size = rng.randrange(1, 1 << rng.randrange(1, _LARGEST.bit_length()))
    data = [rng.randbytes(rng.randrange(40)) for _ in range(size)]
    found = Compared(size=size)
    tree = pymerkle.InmemoryTree(algorithm="sha256")
    frontier, leaves = Frontier(), [leaf_hash(entry) for entry in data]
    for entry, leaf in zip(data, leaves, strict=True):
        tree.append_entry(entry)
        frontier.append(leaf)
        found.heads += 1
        if frontier.root() != tree.get_root():
            found.disagreements.append(f"head at {frontier.size}")
    for _ in range(_PROOFS):
        _compare_inclusion(rng, found, tree, leaves)
        _compare_consistency(rng, found, tree, leaves)
    _compare_note(rng, found, tree.get_root())
    return found


def _compare_inclusion(
    rng: random.Random, found: Compared, tree: pymerkle.InmemoryTree, leaves: list[bytes]
) -> None:
    end = rng.randint(1, len(leaves))
    index = rng.randrange(end)
    root, theirs = tree.get_root(end), tree.prove_inclusion(index + 1, end)
    # Theirs begins with the leaf itself.
    ours = inclusion_proof(leaves, index, end)
    found.inclusion_proofs += 1
    if [leaves[index], *ours] != theirs.path:
        found.disagreements.append(f"inclusion of {index} in {end}")
    try:
        verify_inclusion(leaves[index], index, end, theirs.path[1:], root)
        theirs.path = [leaves[index], *ours]
        theirs.verify(leaves[index], root, index=index + 1, size=end)
    except (VerificationError, pymerkle.InvalidProof) as exc:
        found.disagreements.append(f"inclusion of {index} in {end}: {exc}")


def _compare_consistency(
    rng: random.Random, found: Compared, tree: pymerkle.InmemoryTree, leaves: list[bytes]
) -> None:
    end = rng.randint(1, len(leaves))
    begin = rng.randint(1, end)
    # Their proof goes down to a leaf where that of RFC 6962 ends at a subtree, so the two are not
    # the same hashes. Each is checked by its own side, against the heads of the other.
    found.consistency_proofs += 1
    try:
        ours = consistency_proof(leaves, begin, end)
        verify_consistency(begin, end, tree.get_root(begin), tree.get_root(end), ours)
        tree.prove_consistency(begin, end).verify(
            tree_root(leaves[:begin]), tree_root(leaves[:end]), prior_size=begin, later_size=end
        )
    except (VerificationError, pymerkle.InvalidProof) as exc:
        found.disagreements.append(f"consistency of {begin} with {end}: {exc}")


def _compare_note(rng: random.Random, found: Compared, root: bytes) -> None:
    seed, origin = rng.randbytes(32), f"log/{rng.randrange(10**6)}"
    checkpoint = Checkpoint(origin, found.size, root)
    signer, other = NoteSigner(origin, seed), nacl.signing.SigningKey(seed)
    message = checkpoint.text().encode()
    note = sign_checkpoint(checkpoint, signer)
    found.notes += 1
    # Ours, taken apart by hand and verified by theirs.
    text, _, last = note.rpartition(b"\n\n")
    name, encoded = last.decode().removeprefix("\u2014 ").rstrip("\n").split(" ")
    signed = base64.b64decode(encoded)
    try:
        other.verify_key.verify(text + b"\n", signed[4:])
    except nacl.exceptions.BadSignatureError:
        found.disagreements.append("signature of ours")
    # Theirs, written by hand and verified by ours.
    signature = signed[:4] + other.sign(message).signature
    line = f"\u2014 {name} {base64.b64encode(signature).decode()}\n"
    theirs = message + b"\n" + line.encode()
    verifier = NoteVerifier(name=origin, public_key=bytes(other.verify_key))
    try:
        if open_checkpoint(theirs, [verifier]) != checkpoint:
            found.disagreements.append("checkpoint")
    except VerificationError as exc:
        found.disagreements.append(f"signature of theirs: {exc}")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    total, began = Compared(), time.monotonic()
    for number in range(arguments.logs):
        one = compare_log(random.Random(f"{arguments.seed}/{number}"))
        for name in ("size", "heads", "inclusion_proofs", "consistency_proofs", "notes"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        total.disagreements += [f"log {number}: {words}" for words in one.disagreements]
    result = {
        "what": "random logs compared with pymerkle (trees) and PyNaCl (signatures)",
        "tool_version": __version__,
        "python": platform.python_version(),
        "pymerkle": version("pymerkle"),
        "pynacl": version("pynacl"),
        "seed": arguments.seed,
        "logs": arguments.logs,
        "entries": total.size,
        "heads": total.heads,
        "inclusion_proofs": total.inclusion_proofs,
        "consistency_proofs": total.consistency_proofs,
        "notes": total.notes,
        "disagreements": total.disagreements,
        "seconds": round(time.monotonic() - began, 1),
    }
    text = json.dumps(result, indent=2) + "\n"
    if arguments.json:
        arguments.json.write_text(text)
    sys.stdout.write(text)
    return int(bool(total.disagreements))


if __name__ == "__main__":
    sys.exit(main())
