"""What came of verifying a bundle: a list of steps, each in words, and how each of them stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from kvward.errors import LedgerError
from kvward.ledger.statement import CellVerdict
from kvward.terms import ExitCode


class Standing(StrEnum):
    """How a step stands."""

    HOLDS = "holds"
    NOT_SHOWN = "not shown"
    FAILS = "fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that was looked at.

    Attributes:
        about: The part of the bundle, such as "checkpoint" or "audit 0123456789abcdef".
        told: What was found, one sentence.
    """

    about: str
    standing: Standing
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """What a bundle says of one audit. Verified as far as the steps hold."""

    audit_id: str
    plan_digest: str
    cells: tuple[CellVerdict, ...]


@dataclass(slots=True, kw_only=True)
class Verification:
    """What came of verifying a bundle.

    Attributes:
        steps: In the order in which they were taken.
        audits: Those whose verdicts were worked out again.
        unanswered: Plans of the log that have no verdict in it, by digest.
        elsewhere: Plans of the log that have verdicts, but are not in the bundle, by digest.
    """

    origin: str | None = None
    size: int | None = None
    steps: list[Step] = field(default_factory=list)
    audits: list[AuditRow] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def holds(self, about: str, told: str) -> None:
        """Write down a step that holds."""
        self.steps.append(Step(about=about, standing=Standing.HOLDS, told=told))

    def not_shown(self, about: str, told: str) -> None:
        """Write down something that the bundle does not show, for or against."""
        self.steps.append(Step(about=about, standing=Standing.NOT_SHOWN, told=told))

    def fails(self, about: str, told: str) -> None:
        """Write down a step that fails."""
        self.steps.append(Step(about=about, standing=Standing.FAILS, told=told))

    @contextmanager
    def step(self, about: str) -> Iterator[None]:
        """Take a step; an error of the ledger in it makes it one that fails."""
        try:
            yield
        except LedgerError as exc:
            self.fails(about, f"{exc.message} {exc.hint or ''}".strip())

    @property
    def standing(self) -> Standing:
        """Return the worst of all steps."""
        found = {step.standing for step in self.steps}
        if Standing.FAILS in found or not found:
            return Standing.FAILS
        return Standing.NOT_SHOWN if Standing.NOT_SHOWN in found else Standing.HOLDS

    @property
    def exit_code(self) -> ExitCode:
        """Return 0 where all holds, 2 where something is not shown, 4 where something fails."""
        return {
            Standing.HOLDS: ExitCode.NOT_OBSERVED,
            Standing.NOT_SHOWN: ExitCode.INCONCLUSIVE,
            Standing.FAILS: ExitCode.EVIDENCE,
        }[self.standing]
