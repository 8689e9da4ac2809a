"""Shared nouns, one meaning each. Read this first; `docs/glossary.md` explains them.

Everything here is data without behaviour that another layer could disagree about.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum, IntEnum, StrEnum


class SharingLevel(Enum):
    """How far cached state may be shared. Narrow to wide; there is no default level."""

    REQUEST = "request"
    CONVERSATION = "conversation"
    USER = "user"
    TENANT = "tenant"
    PUBLIC = "public"

    @property
    def width(self) -> int:
        """Return 0 for the narrowest level up to 4 for the widest."""
        return list(SharingLevel).index(self)


class CacheTier(StrEnum):
    """Where reuse happens."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"
    PROVIDER = "provider"


class ClauseId(StrEnum):
    """The eleven clauses, in the order in which a contract is read."""

    SCOPE = "scope"
    ORIGIN = "origin"
    BINDING = "binding"
    UNTRUSTED = "untrusted"
    SECRECY = "secrecy"
    LIFETIME = "lifetime"
    ERASURE = "erasure"
    METADATA = "metadata"
    INTERFERENCE = "interference"
    FAILURE = "failure"
    EVIDENCE = "evidence"


class Outcome(StrEnum):
    """Three-valued answer. `VIOLATED` wins over `INCONCLUSIVE` over `NOT_OBSERVED`."""

    VIOLATED = "VIOLATED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_OBSERVED = "NOT_OBSERVED"


class Channel(StrEnum):
    """The observable through which another scope's state could show."""

    CONTENT = "content"
    DIFFERENTIAL = "differential"
    METADATA = "metadata"
    TIMING = "timing"


class ProbeScope(StrEnum):
    """Who reads whose state, and after what: from the same request (S0) to own state (S8)."""

    S0 = "S0"
    S1 = "S1"
    S2 = "S2"
    S3 = "S3"
    S4 = "S4"
    S5 = "S5"
    S6 = "S6"
    S7 = "S7"
    S8 = "S8"

    @property
    def meaning(self) -> str:
        """Return the reader-against-writer relation in plain words."""
        return _PROBE_SCOPE_MEANING[self]


_PROBE_SCOPE_MEANING = {
    ProbeScope.S0: "same request again",
    ProbeScope.S1: "same conversation, next turn",
    ProbeScope.S2: "same tenant, other conversation",
    ProbeScope.S3: "other tenant",
    ProbeScope.S4: "other model, revision or adapter",
    ProbeScope.S5: "scope forged by the caller",
    ProbeScope.S6: "after erase, expiry or restart",
    ProbeScope.S7: "same text, other picture",
    ProbeScope.S8: "own state after another tenant's flood",
}


class ExitCode(IntEnum):
    """Process exit codes of every kvward command."""

    NOT_OBSERVED = 0
    VIOLATED = 1
    INCONCLUSIVE = 2
    USAGE = 3
    EVIDENCE = 4
    UNREACHABLE = 5


def merge_outcomes(outcomes: list[Outcome]) -> Outcome:
    """Return the strongest of several outcomes.

    Returns:
        `VIOLATED` if any is, else `INCONCLUSIVE` if any is or if there are none
        (nothing looked at is never "nothing observed"), else `NOT_OBSERVED`.
    """
    if Outcome.VIOLATED in outcomes:
        return Outcome.VIOLATED
    if not outcomes or Outcome.INCONCLUSIVE in outcomes:
        return Outcome.INCONCLUSIVE
    return Outcome.NOT_OBSERVED


class StateEnd(StrEnum):
    """What ended the state that probe scope S6 asks for."""

    ERASURE = "erasure"
    LIFETIME = "lifetime"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRecord:
    """What one audit said of one cell, as plain data: evidence for or against a promise.

    Attributes:
        endings: For S6, what ended the state; empty otherwise.
        bound: Upper limit of the rate of events that was shown; None where nothing bounds it.
        day: Of the audit, UTC.
        reason: Why, in one sentence.
        source: Digest of the history that it follows from.
    """

    channel: Channel
    scope: ProbeScope
    tier: CacheTier
    outcome: Outcome
    endings: frozenset[StateEnd]
    bound: float | None
    confidence: float
    day: date
    reason: str
    source: str
