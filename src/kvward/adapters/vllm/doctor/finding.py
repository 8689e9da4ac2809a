"""What the doctor says about one setting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_SHOWN_CHARACTERS = 80


class Severity(StrEnum):
    """How much a setting takes away."""

    DEFEATS = "defeats"
    WEAKENS = "weakens"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One setting that isolation suffers from, or that nobody can judge from here.

    Attributes:
        id: Stable name of the rule.
        setting: As given, or what is missing. Printable; never holds a key.
        why: One sentence.
        mend: One sentence.
    """

    id: str
    severity: Severity
    setting: str
    why: str
    mend: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "setting", printable(self.setting))


def not_understood(setting: str, why: str) -> Finding:
    """Return the finding about a part that is not understood, and so not judged."""
    return Finding(
        id="not-understood",
        severity=Severity.UNKNOWN,
        setting=setting,
        why=why,
        mend="Spell it as vLLM 0.32.0 does, or leave it away.",
    )


def printable(text: str) -> str:
    """Return text that can stand in one line of a terminal. [untrusted]"""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    if len(clean) <= _SHOWN_CHARACTERS:
        return clean
    return clean[: _SHOWN_CHARACTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"
