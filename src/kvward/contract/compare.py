"""Two versions of a contract: what got wider, what got narrower, and what cannot be told.

*Wider* is less isolation promised: more may be shared, seen or kept, fewer things are covered, or
tested less. A clause in which anything got wider is wider, whatever else got narrower in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvward.contract.facts import Fact, facts
from kvward.contract.model import IsolationContract
from kvward.terms import ClauseId


class Direction(StrEnum):
    """Which way a promise moved."""

    WIDER = "wider"
    UNKNOWN = "unknown"
    NARROWER = "narrower"
    EQUAL = "equal"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One fact that differs.

    Attributes:
        clause: None for what belongs to the document as a whole.
        what: Its name, for example "level of chat_completions for *".
        before: None where there was nothing.
        after: None where there is nothing any more.
    """

    clause: ClauseId | None
    what: str
    before: str | None
    after: str | None
    direction: Direction


@dataclass(frozen=True, kw_only=True)
class ClauseChange:
    """Which way one clause moved, and by which changes."""

    clause: ClauseId | None
    direction: Direction
    changes: tuple[Change, ...]


def compare(old: IsolationContract, new: IsolationContract) -> tuple[ClauseChange, ...]:
    """Compare two contracts clause by clause.

    Returns:
        All eleven clauses in their order, and first, with `clause` None, the document.
    """
    changes = [*_changes(old, new)]
    result = []
    for clause in (None, *ClauseId):
        own = tuple(change for change in changes if change.clause is clause)
        result.append(ClauseChange(clause=clause, direction=merge(own), changes=own))
    return tuple(result)


def merge(changes: tuple[Change, ...]) -> Direction:
    """Return the first of wider, unknown and narrower that occurs; equal if there is no change."""
    seen = {change.direction for change in changes}
    return next((one for one in Direction if one in seen), Direction.EQUAL)


def _changes(old: IsolationContract, new: IsolationContract) -> Iterator[Change]:
    before, after = facts(old, beside=new), facts(new, beside=old)
    for key in dict.fromkeys((*before, *after)):
        one, other = before.get(key), after.get(key)
        direction = _direction(one, other)
        if direction is not Direction.EQUAL:
            clause, what = key
            yield Change(
                clause=clause,
                what=what,
                before=None if one is None else one.text,
                after=None if other is None else other.text,
                direction=direction,
            )


def _direction(one: Fact | None, other: Fact | None) -> Direction:
    if one is None or other is None:
        fact = one or other
        if fact is None or fact.absent is None:
            return Direction.UNKNOWN
        before = fact.absent if one is None else fact.width
        after = fact.absent if other is None else fact.width
    elif one.width is None or other.width is None:
        return Direction.EQUAL if one.text == other.text else Direction.UNKNOWN
    else:
        before, after = one.width, other.width
        if before == after and one.text != other.text:
            return Direction.UNKNOWN
    if before is None or after is None:
        return Direction.UNKNOWN
    if before == after:
        return Direction.EQUAL
    return Direction.WIDER if after > before else Direction.NARROWER
