"""Entries of a ledger: typed, canonical, and without room for free text.

Every field is a digest, a pseudonym, a word of a list or a number, and refuses all else, both when
an entry is made and when it is read. So no prompt, no name of a tenant and no message can be in a
log. (A digest has the form of a key: nobody but the caller can see to it that it is none.)

An entry is JSON in one spelling: UTF-8, keys sorted, no spaces, all fields present, null where
there is nothing, numbers as decimal integers. Bytes that are not what `encode_entry` would write
are no entry.

Source: docs/spec/ledger-v1.md, section 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from kvward.errors import VerificationError
from kvward.ledger.names import Clause, CountedEvent, CountedReason, DropReason, SeedSource
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope

MAX_ENTRY_BYTES = 2**16 - 1
PPB = 1_000_000_000
"""Parts in one, for bounds: rates are integers of a billionth."""

Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""SHA-256, hexadecimal."""

Pseudonym = Annotated[str, Meta(pattern=r"\A[0-9a-f]{48}\Z")]
"""Id of a tenant or of a scope, derived with a key, hexadecimal."""

Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
PositiveCount = Annotated[int, Meta(ge=1, le=2**53 - 1)]
UnixMs = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Ratio = Annotated[int, Meta(ge=0, le=PPB)]
"""Parts per billion, rounded up where it is a bound."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common to all entries. Fields are checked when an entry is made.

    Attributes:
        at_unix_ms: When it was written down, by the clock of whoever did.
    """

    at_unix_ms: UnixMs

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ValueError: A field holds something that it may not hold. Its value is not repeated.
        """
        for name, fits in _checks(type(self)):
            if not fits(getattr(self, name)):
                raise ValueError(f"The field {name} of an entry does not hold what it may hold.")


class PlanPublished(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="plan"):
    """An audit is going to be made. Written before its first request.

    Attributes:
        plan_digest: Of the plan, as it is in every verdict.
        contract_digest: Of the contract that the plan was made from; None without one.
        seed_digest: Of what a third party gave for a seed; None where none did.
    """

    plan_digest: Digest
    contract_digest: Digest | None
    seed_source: SeedSource
    seed_digest: Digest | None


class VerdictReached(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="verdict"):
    """An audit answered one question.

    Attributes:
        clause: Of a contract; None where the audit had none.
        channel, scope: The cell of the plan; None where the clause was checked otherwise.
        tier: Which tier was put to the test; None where nobody knows.
        bound_ppb: Upper limit of the rate, in parts per billion; None where nothing bounds it.
        report_digest: Of the report's bytes.
    """

    clause: Clause | None
    channel: Channel | None
    scope: ProbeScope | None
    tier: CacheTier | None
    outcome: Outcome
    bound_ppb: Ratio | None
    plan_digest: Digest
    history_digest: Digest
    report_digest: Digest


class ContractPublished(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="contract"):
    """A contract is in force from now on.

    Attributes:
        version: Grows by one or more with every contract of this log.
    """

    contract_digest: Digest
    version: PositiveCount


class PolicyChanged(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="policy"):
    """A gateway or an engine works by another policy from now on."""

    policy_digest: Digest


class EpochBegun(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="epoch"):
    """A new generation of keys is written with.

    Attributes:
        scope_id: None when it is all of the tenant's.
    """

    tenant_id: Pseudonym
    scope_id: Pseudonym | None
    epoch: Count


class ErasureDone(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="erasure"):
    """Keys were destroyed.

    Attributes:
        receipt_digest: Of the signed receipt's bytes.
    """

    receipt_digest: Digest


class EventsCounted(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="count"):
    """How often something was refused or failed, in a window of time that ends with the entry."""

    name: CountedEvent
    reason: CountedReason | None
    count: PositiveCount
    window_ms: Count


class EntriesDropped(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="dropped"):
    """Entries that should be here and are not."""

    reason: DropReason
    count: PositiveCount


class CheckpointSeen(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint"):
    """Another log was at this checkpoint.

    Attributes:
        origin_digest: SHA-256 of the other log's origin in UTF-8: a name is no field.
        root: Hexadecimal.
        note_digest: SHA-256 of the signed checkpoint's bytes.
    """

    origin_digest: Digest
    size: Count
    root: Digest
    note_digest: Digest


class KeyRotated(_Entry, frozen=True, kw_only=True, tag_field="kind", tag="key"):
    """From the next checkpoint on this log is signed with another key.

    Attributes:
        old_key_digest, new_key_digest: SHA-256 of the verifier keys' text.
    """

    old_key_digest: Digest
    new_key_digest: Digest


Entry = (
    PlanPublished
    | VerdictReached
    | ContractPublished
    | PolicyChanged
    | EpochBegun
    | ErasureDone
    | EventsCounted
    | EntriesDropped
    | CheckpointSeen
    | KeyRotated
)

_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """Return the one spelling of an entry, at most `MAX_ENTRY_BYTES`."""
    return _ENCODER.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """Read an entry.

    Args:
        data: [untrusted]
    Raises:
        VerificationError: It is not an entry of this version in its one spelling. The message does
            not repeat it.
    """
    try:
        entry = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # From None: what the decoder says may repeat what it read.
        raise VerificationError(
            "This is not an entry of a ledger.",
            hint="If a later kvward wrote it, verify it with that.",
        ) from None
    if _ENCODER.encode(entry) != data:
        raise VerificationError("The entry is not in its canonical spelling.")
    return entry


def kind_of(entry: Entry) -> str:
    """Return the word that names the type of an entry, for example "verdict"."""
    return str(type(entry).__struct_config__.tag)


_Check = Callable[[Any], bool]


class _Checks:
    """Checks of the fields of each type, made once from their annotations."""

    made: ClassVar[dict[type, tuple[tuple[str, _Check], ...]]] = {}


def _checks(kind: type[_Entry]) -> tuple[tuple[str, _Check], ...]:
    found = _Checks.made.get(kind)
    if found is None:
        described = msgspec.inspect.type_info(kind)
        assert isinstance(described, msgspec.inspect.StructType)  # noqa: S101 - they all are
        found = tuple((field.name, _check_of(field.type)) for field in described.fields)
        _Checks.made[kind] = found
    return found


def _check_of(kind: msgspec.inspect.Type) -> _Check:
    match kind:
        case msgspec.inspect.StrType(pattern=str(pattern)):
            matches = re.compile(pattern).search
            return lambda value: type(value) is str and matches(value) is not None
        case msgspec.inspect.IntType(ge=int(least), le=int(most)):
            return lambda value: type(value) is int and least <= value <= most
        case msgspec.inspect.EnumType(cls=words) if issubclass(words, (StrEnum, Channel)):
            return lambda value: type(value) is words
        case msgspec.inspect.UnionType(types=(inner, msgspec.inspect.NoneType())):
            fits = _check_of(inner)
            return lambda value: value is None or fits(value)
    raise TypeError("A field of an entry is a digest, a pseudonym, a word of a list or a number.")
