"""The log's part of a bundle: a signed checkpoint, entries with proofs, what came before.

Source: docs/spec/bundle-v1.md, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from kvward.errors import BundleError, ForkError
from kvward.ledger.bundle.manifest import FIXED_NAMES, Role
from kvward.ledger.bundle.result import Verification
from kvward.ledger.bundle.signatures import Keys
from kvward.ledger.checkpoint import MAX_SIZE, Checkpoint, open_checkpoint
from kvward.ledger.document import to_canonical_json
from kvward.ledger.entry import MAX_ENTRY_BYTES, Entry, decode_entry
from kvward.ledger.merkle import leaf_hash, tree_root, verify_consistency, verify_inclusion

MAX_PROOF = 64
_ABOUT = "log"
Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Proof = Annotated[tuple[Hash, ...], Meta(max_length=MAX_PROOF)]


class EntryLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file of entries.

    Attributes:
        entry: The entry's own JSON, as text.
        index: Its place in the log, from 0.
        proof: That it is there: hashes from its sibling upwards.
    """

    entry: Annotated[str, Meta(max_length=MAX_ENTRY_BYTES)]
    index: Annotated[int, Meta(ge=0, le=MAX_SIZE)]
    proof: Proof


class ConsistencyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shows that the log of the checkpoint begins with that of the older one."""

    proof: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The log as far as a bundle shows it; every entry is in the tree that was signed.

    Attributes:
        entries: Place and entry, in the order of the log.
        is_complete: Whether these are all entries of the checkpoint's log.
    """

    checkpoint: Checkpoint
    entries: Sequence[tuple[int, Entry]]
    is_complete: bool


def check_log(
    files: Mapping[str, bytes],
    keys: Keys,
    result: Verification,
    *,
    known: bytes | None,
    allow_partial: bool,
) -> LogPart:
    """Check the log's part of a bundle.

    Args:
        files: Those that the manifest lists. [untrusted]
        known: A signed checkpoint of the same log that whoever verifies had before. [untrusted]
        allow_partial: Whether some of the log's entries may be missing.
    Raises:
        VerificationError: It does not verify.
        ForkError: It does not continue the log that is known.
    """
    # (1) The checkpoint is signed.
    checkpoint = keys.open_checkpoint(files[FIXED_NAMES[Role.CHECKPOINT]])
    result.origin, result.size = checkpoint.origin, checkpoint.size
    whose = "by a key that you trust" if keys.trusted else "by a key that the bundle itself lists"
    result.holds(_ABOUT, f"The checkpoint of {checkpoint.size} entries is signed {whose}.")
    # (2) Every entry is in its tree.
    lines = parse_unverified_entries(files[FIXED_NAMES[Role.ENTRIES]])
    leaves = [leaf_hash(line.entry.encode()) for line in lines]
    for line, leaf in zip(lines, leaves, strict=True):
        proof = [bytes.fromhex(item) for item in line.proof]
        verify_inclusion(leaf, line.index, checkpoint.size, proof, checkpoint.root)
    entries = [(line.index, decode_entry(line.entry.encode())) for line in lines]
    result.holds(_ABOUT, f"{len(entries)} entries are in the log, each at its place.")
    # (3) None is left out. All indices differ and are below the size.
    is_complete = len(lines) == checkpoint.size
    if is_complete:
        if tree_root(leaves) != checkpoint.root:
            raise BundleError("The entries do not lead to the root of the checkpoint.")
        result.holds(_ABOUT, "All entries of the log are here, so no plan is hidden.")
    else:
        _tell_missing(result, checkpoint.size - len(lines), allow_partial=allow_partial)
    # (4) The log begins with what it was before.
    older = _check_older(files, keys, checkpoint, result)
    if known is not None:
        # Who else has signed what somebody kept does not matter.
        earlier = open_checkpoint(known, keys.trusted or keys.listed)
        _check_known(earlier, checkpoint, older, leaves if is_complete else None)
        result.holds(_ABOUT, f"It continues the log of {earlier.size} entries that you knew.")
    return LogPart(checkpoint=checkpoint, entries=entries, is_complete=is_complete)


def parse_unverified_entries(data: bytes) -> list[EntryLine]:
    """Read the file of entries. Nothing is checked but form and order.

    Args:
        data: JSON Lines. [untrusted]
    Raises:
        BundleError: A line is not one, or not in its one spelling, or the order is another one.
    """
    decoder, lines, last = msgspec.json.Decoder(EntryLine), [], -1
    for text in data.split(b"\n")[:-1]:
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise BundleError("The file of entries has a line that is none.") from None
        if to_canonical_json(line) != text or line.index <= last:
            raise BundleError("The entries are not in order, or not in their one spelling.")
        last = line.index
        lines.append(line)
    if data and not data.endswith(b"\n"):
        raise BundleError("The file of entries ends within a line.")
    return lines


def _tell_missing(result: Verification, num_missing: int, *, allow_partial: bool) -> None:
    told = f"{num_missing} entries of the log are not here; plans without results could be there."
    if allow_partial:
        result.not_shown(_ABOUT, told)
    else:
        result.fails(_ABOUT, f"{told} Ask for all of them, or accept it with --partial.")


def _check_older(
    files: Mapping[str, bytes], keys: Keys, checkpoint: Checkpoint, result: Verification
) -> Checkpoint | None:
    names = FIXED_NAMES[Role.OLDER_CHECKPOINT], FIXED_NAMES[Role.CONSISTENCY]
    data, proof = (files.get(name) for name in names)
    if data is None and proof is None:
        return None
    if data is None or proof is None:
        raise BundleError("An older checkpoint and its consistency proof belong together.")
    older = keys.open_checkpoint(data)
    if older.origin != checkpoint.origin:
        raise BundleError("The older checkpoint is one of another log.")
    verify_consistency(
        older.size, checkpoint.size, older.root, checkpoint.root, _parse_consistency(proof)
    )
    result.holds(_ABOUT, f"It continues its own older checkpoint of {older.size} entries.")
    return older


def _parse_consistency(data: bytes) -> list[bytes]:
    try:
        value = msgspec.json.decode(data, type=ConsistencyFile)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BundleError("The consistency proof is none.") from None
    if to_canonical_json(value) != data:
        raise BundleError("The consistency proof is not in its one spelling.")
    return [bytes.fromhex(item) for item in value.proof]


def _check_known(
    known: Checkpoint,
    checkpoint: Checkpoint,
    older: Checkpoint | None,
    leaves: Sequence[bytes] | None,
) -> None:
    if known.origin != checkpoint.origin:
        raise BundleError("The checkpoint that you know is one of another log.")
    if known.size > checkpoint.size:
        raise ForkError(
            f"You know a log of {known.size} entries, and this bundle is of one of "
            f"{checkpoint.size}: it was rolled back, or the bundle is older.",
            hint="Ask for a bundle of the log as it is now.",
        )
    if leaves is not None:
        is_begun = tree_root(leaves[: known.size]) == known.root
    elif known.size == checkpoint.size:
        is_begun = known.root == checkpoint.root
    elif older is not None and older.size == known.size:
        is_begun = older.root == known.root
    else:
        raise BundleError(
            "Nothing here shows that the log continues the one that you know.",
            hint=f"Ask for a bundle made with --since and a checkpoint of {known.size} entries.",
        )
    if not is_begun:
        raise ForkError(
            "The log does not continue the one that you know: it tells two stories.",
            hint="Keep both checkpoints; together they show it to anybody.",
        )
