"""Vectors of a ledger: entries, trees, proofs, verifier keys, notes, checkpoints."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kvward.ledger.checkpoint import Checkpoint, sign_checkpoint
from kvward.ledger.entry import (
    CheckpointSeen,
    ContractPublished,
    EntriesDropped,
    Entry,
    EpochBegun,
    ErasureDone,
    EventsCounted,
    KeyRotated,
    PlanPublished,
    PolicyChanged,
    VerdictReached,
    encode_entry,
)
from kvward.ledger.merkle import (
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    tree_root,
)
from kvward.ledger.names import Clause, CountedEvent, CountedReason, DropReason, SeedSource
from kvward.ledger.note import NoteSigner
from kvward.ledger.tiles import Tile, pack_bundle
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope

_AT = 1_800_000_000_000
_SEED = bytes(range(32))
_ORIGIN = "vectors/one"


def ledger_vectors() -> dict[str, Any]:
    entries = _entries()
    data = [encode_entry(entry) for _, entry in entries]
    leaves = [leaf_hash(entry) for entry in data]
    signer, other = NoteSigner(_ORIGIN, _SEED), NoteSigner(_ORIGIN, bytes(32))
    witness = NoteSigner("witness/w", b"\x07" * 32)
    checkpoint = Checkpoint(_ORIGIN, len(leaves), tree_root(leaves))
    note = sign_checkpoint(checkpoint, signer).decode()
    return {
        "format": "kvward ledger v1",
        "entries": [
            {
                "id": number,
                "comment": comment,
                "entry": encode_entry(entry).decode(),
                "leaf_hash": leaf_hash(encode_entry(entry)).hex(),
            }
            for number, (comment, entry) in enumerate(entries, start=1)
        ],
        "must_fail": [
            {"id": number, "comment": comment, "entry": text}
            for number, (comment, text) in enumerate(_no_entries(data), start=1)
        ],
        "trees": [
            {"size": size, "root": tree_root(leaves[:size]).hex()}
            for size in range(len(leaves) + 1)
        ],
        "inclusion": [
            {
                "index": index,
                "size": size,
                "proof": [hashed.hex() for hashed in inclusion_proof(leaves, index, size)],
            }
            for index, size in ((0, 1), (0, 2), (1, 3), (2, 3), (6, 7), (5, 11), (10, 11))
        ],
        "consistency": [
            {
                "old_size": old_size,
                "size": size,
                "proof": [hashed.hex() for hashed in consistency_proof(leaves, old_size, size)],
            }
            for old_size, size in ((0, 3), (1, 1), (1, 2), (3, 7), (4, 7), (6, 11), (8, 11))
        ],
        "bundle": pack_bundle(data[:2]).hex(),
        "paths": [
            {"level": level, "index": index, "width": width, "path": Tile(level, index, width).path}
            for level, index, width in (
                (0, 0, 256),
                (1, 1234067, 8),
                (None, 999, 256),
                (None, 1000, 1),
            )
        ],
        "key": {
            "name": _ORIGIN,
            "seed": _SEED.hex(),
            "private_key": signer.reveal(),
            "verifier_key": signer.verifier.to_text(),
            "key_digest": hashlib.sha256(signer.verifier.to_text().encode()).hexdigest(),
        },
        "checkpoint": {"text": checkpoint.text(), "note": note},
        "notes_must_fail": [
            {"id": number, "comment": comment, "note": text}
            for number, (comment, text) in enumerate(
                [
                    ("signed by another key of the same name",
                     sign_checkpoint(checkpoint, other).decode()),
                    ("root changed", note.replace(note[15:17], note[16] + note[15], 1)),
                    ("size with a leading zero", note.replace("\n11\n", "\n011\n")),
                    ("another size", note.replace("\n11\n", "\n12\n")),
                    ("another origin", note.replace("vectors/one\n", "vectors/two\n")),
                    ("a line more", note.replace("\n\n", "\nmore\n\n")),
                    ("no empty line", note.replace("\n\n", "\n")),
                    ("no last newline", note[:-1]),
                    ("a hyphen for the dash", note.replace("\u2014", "-")),
                    ("no signature", checkpoint.text() + "\n"),
                    ("the key of another log",
                     sign_checkpoint(Checkpoint("witness/w", 1, bytes(32)), witness).decode()),
                ],
                start=1,
            )
        ],
    }  # fmt: skip


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _entries() -> list[tuple[str, Entry]]:
    tenant, scope = "1f" * 24, "2e" * 24
    return [
        ("a plan", PlanPublished(
            at_unix_ms=_AT, plan_digest=_digest("plan"), contract_digest=_digest("contract"),
            seed_source=SeedSource.THIRD_PARTY, seed_digest=_digest("seed"))),
        ("a plan without contract", PlanPublished(
            at_unix_ms=0, plan_digest=_digest("other plan"), contract_digest=None,
            seed_source=SeedSource.DRAWN, seed_digest=None)),
        ("a verdict", VerdictReached(
            at_unix_ms=_AT + 1, clause=Clause.SCOPE, channel=Channel.CONTENT, scope=ProbeScope.S3,
            tier=CacheTier.DEVICE, outcome=Outcome.NOT_OBSERVED, bound_ppb=300_000,
            plan_digest=_digest("plan"), history_digest=_digest("history"),
            report_digest=_digest("report"))),
        ("a contract", ContractPublished(
            at_unix_ms=_AT, contract_digest=_digest("contract"), version=2**53 - 1)),
        ("a policy", PolicyChanged(at_unix_ms=_AT, policy_digest=_digest("policy"))),
        ("an epoch", EpochBegun(at_unix_ms=_AT, tenant_id=tenant, scope_id=scope, epoch=3)),
        ("an erasure", ErasureDone(at_unix_ms=_AT, receipt_digest=_digest("receipt"))),
        ("a count", EventsCounted(
            at_unix_ms=_AT, name=CountedEvent.STORE_REFUSED, reason=CountedReason.NOT_AUTHENTIC,
            count=12, window_ms=60_000)),
        ("entries that are missing", EntriesDropped(
            at_unix_ms=_AT, reason=DropReason.QUEUE_FULL, count=7)),
        ("another log", CheckpointSeen(
            at_unix_ms=_AT, origin_digest=_digest("other/log"), size=70_000, root=_digest("root"),
            note_digest=_digest("note"))),
        ("another key", KeyRotated(
            at_unix_ms=_AT, old_key_digest=_digest("old"), new_key_digest=_digest("new"))),
    ]  # fmt: skip


def _no_entries(data: list[bytes]) -> list[tuple[str, str]]:
    good = data[7].decode()
    value = json.loads(good)
    return [
        ("empty", ""),
        ("no object", "null"),
        ("no fields", "{}"),
        ("a trailing newline", good + "\n"),
        ("a space", good.replace(",", ", ", 1)),
        ("keys not sorted", json.dumps(dict(reversed(value.items())), separators=(",", ":"))),
        ("an escaped letter", good.replace("store", "\\u0073tore")),
        ("a key twice", good.replace('"count":12', '"count":12,"count":12')),
        ("a number with a fraction", good.replace(":12,", ":12.0,")),
        ("a number as text", good.replace(":12,", ':"12",')),
        ("a negative time", good.replace(f":{_AT}", ":-1")),
        ("a time of 54 bits", good.replace(f":{_AT}", f":{2**53}")),
        ("a count of nothing", good.replace(":12,", ":0,")),
        ("a field too many", good.replace("{", '{"a":1,')),
        ("a field missing", good.replace(',"window_ms":60000', "")),
        ("an unknown kind", good.replace('"kind":"count"', '"kind":"note"')),
        ("an unknown event", good.replace("store.refused", "acme")),
        ("an unknown reason", good.replace("not-authentic", "acme")),
        ("a digest in capitals", data[4].decode().replace(_digest("policy"), "AB" * 32)),
        ("a digest of 63 digits", data[4].decode().replace(_digest("policy"), "a" * 63)),
        ("a text for a digest", data[4].decode().replace(_digest("policy"), "acme")),
        ("a pseudonym of 64 digits", data[5].decode().replace("1f" * 24, "1f" * 32)),
        ("null where something must be", data[5].decode().replace(f'"{"1f" * 24}"', "null")),
    ]
