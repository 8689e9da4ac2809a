"""Which controls of published standards the clauses help to meet, and which command shows it.

`controls.toml` holds the table; it is read strictly. The controls are paraphrased, and each
standard says in which version it was read and how sure that is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from importlib.resources import files

import msgspec

from kvward.contract.providers.records import CLAUSES
from kvward.errors import ConfigError

_FILE = "controls.toml"
_SECOND_HAND = "second-hand"


class Fit(StrEnum):
    """How well a control and the clauses meet."""

    DIRECT = "direct"
    """The control is about reuse of cached state between tenants."""
    PART = "part"
    """The control asks for more, or for it in other words."""
    NEIGHBOUR = "neighbour"
    """The control is about something else that the same evidence helps with."""


class Sureness(StrEnum):
    """How sure number, version and meaning of a standard's controls are."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shows that a control is met.

    Attributes:
        command: A command of this tool, without its options.
        shows: What its output is evidence of.
    """

    command: str
    shows: str


class Standard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A standard, and in which form we know it.

    Attributes:
        title: Its name.
        version: Version or year that the numbers are from.
        read: Day on which it was read, or "second-hand".
        sureness: How sure its rows are.
        note: What limits that.
        url: Where it is published.
    """

    title: str
    version: str
    read: str
    sureness: Sureness
    note: str
    url: str | None = None


class Control(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One control of a standard.

    Attributes:
        standard: Key of its standard.
        number: Its number there.
        asks: Our paraphrase.
        fit: How well it meets the clauses.
        clauses: Ids of the clauses that help to meet it.
        evidence: What shows it; at least one command.
        level: The standard's own level, where it has levels.
        note: What is not covered.
    """

    standard: str
    number: str
    asks: str
    fit: Fit
    clauses: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    level: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """The whole table.

    Attributes:
        standards: By key, in the order of the file.
        controls: In the order of the file.
    """

    standards: Mapping[str, Standard]
    controls: tuple[Control, ...]

    def of_clause(self, clause: str) -> tuple[Control, ...]:
        """Return the controls that a clause helps to meet."""
        return tuple(control for control in self.controls if clause in control.clauses)


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    standards: dict[str, Standard]
    controls: tuple[Control, ...]


def load_controls() -> Controls:
    """Read the table that comes with the package."""
    return parse_controls(files("kvward.contract").joinpath(_FILE).read_text(encoding="utf-8"))


def parse_controls(text: str) -> Controls:
    """Parse a table of controls.

    Args:
        text: TOML. [untrusted]
    Raises:
        ConfigError: It is not TOML, has a field that is not known, names a clause or a standard
            that is not there, or leaves a clause without a control.
    """
    try:
        read = msgspec.convert(tomllib.loads(text), _File)
        _check(read)
    except (msgspec.ValidationError, ValueError) as exc:
        raise ConfigError(
            f"The table of controls is at fault: {exc}.",
            hint="src/kvward/contract/controls.toml shows the form.",
        ) from exc
    return Controls(standards=read.standards, controls=read.controls)


def _check(read: _File) -> None:
    for standard in read.standards.values():
        if standard.read != _SECOND_HAND:
            date.fromisoformat(standard.read)
    named = {(control.standard, control.number) for control in read.controls}
    if len(named) != len(read.controls):
        raise ValueError("a control is there twice")
    for control in read.controls:
        if control.standard not in read.standards:
            raise ValueError(f"{control.number}: no standard {control.standard}")
        if strange := sorted(set(control.clauses) - set(CLAUSES)):
            raise ValueError(f"{control.number}: no clause {', '.join(strange)}")
        if not control.clauses or not control.evidence:
            raise ValueError(f"{control.number}: name a clause, and a command that shows it")
    covered = {clause for control in read.controls for clause in control.clauses}
    if bare := [clause for clause in CLAUSES if clause not in covered]:
        raise ValueError(f"no control for {', '.join(bare)}")
