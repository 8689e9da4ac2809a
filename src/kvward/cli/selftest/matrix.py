"""The matrix of defects by channels, as data: what was met, what was seen, what that says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from kvward import __version__
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope, merge_outcomes

FORMAT = "kvward selftest 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one channel said of one engine, the strongest of its cells.

    Attributes:
        scopes: Probe scopes of the cells with that outcome.
        tier: The cache tier that they were asked about.
        num_requests: Requests of that audit, all channels together.
        first_request: The request, counted from 1 in the audit's order, with whose answer the
            evidence was complete; None where nothing was violated or that cannot be told.
        events, num_read: Of the first of the cells: how many of its trials showed something.
        sensitivity: Lower limit of the share of events that would have been seen; None where the
            channel does not measure it.
        reason: Why, in one sentence.
    """

    channel: Channel
    outcome: Outcome
    scopes: tuple[ProbeScope, ...]
    tier: CacheTier
    num_requests: int
    first_request: int | None
    events: int
    num_read: int
    sensitivity: float | None
    reason: str


class Answer(StrEnum):
    """What a row says of the auditor; `CLEAN` and `UNCLEAR` of engines without a defect."""

    FOUND = "found"
    MISSED = "missed"
    STRAY = "stray"
    CLEAN = "clean"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One engine and what the auditor said of it.

    Attributes:
        defect: Its planted defect; None for the clean engine.
        rate: Of its opportunities; None for a defect that is always there.
        start: What the lab was started with besides.
        expected: Channels that an outside observer could be expected to see it in, by the lab's
            register.
        opportunities, strikes: As the engine itself counted them when it was stopped; None for a
            defect that does not count.
    """

    defect: str | None
    failure_class: str
    rate: float | None
    start: tuple[str, ...]
    expected: frozenset[Channel]
    seen: tuple[Seen, ...]
    seconds: float
    opportunities: int | None = None
    strikes: int | None = None

    @property
    def fired(self) -> frozenset[Channel]:
        """Return the channels that said `VIOLATED`."""
        return frozenset(s.channel for s in self.seen if s.outcome is Outcome.VIOLATED)

    @property
    def stray(self) -> frozenset[Channel]:
        """Return the channels that fired and should not have."""
        return self.fired - self.expected

    @property
    def answer(self) -> Answer:
        """Return what the row says of the auditor: a stray alarm weighs more than a find."""
        if self.stray:
            return Answer.STRAY
        if self.defect is None:
            # Times decide little on a machine that does other things; the rest has to be seen.
            read = [s for s in self.seen if s.channel is not Channel.TIMING]
            unread = not read or any(s.outcome is Outcome.INCONCLUSIVE for s in read)
            return Answer.UNCLEAR if unread else Answer.CLEAN
        return Answer.FOUND if self.fired else Answer.MISSED

    @property
    def first_request(self) -> int | None:
        """Return the earliest of the requests that completed a channel's evidence."""
        return min((s.first_request for s in self.seen if s.first_request), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All rows of a self-test."""

    rows: tuple[Row, ...]
    seed: int
    outputs: int
    pairs: int
    started_unix_s: int

    @property
    def strays(self) -> tuple[Row, ...]:
        """Return the rows with an alarm that has no cause."""
        return tuple(row for row in self.rows if row.answer is Answer.STRAY)

    @property
    def found(self) -> tuple[Row, ...]:
        """Return the rows whose defect was found."""
        return tuple(row for row in self.rows if row.answer is Answer.FOUND)

    @property
    def unclear(self) -> tuple[Row, ...]:
        """Return the clean engines of which something besides their times was not told."""
        return tuple(row for row in self.rows if row.answer is Answer.UNCLEAR)

    @property
    def missed(self) -> tuple[Row, ...]:
        """Return the rows whose defect was not found."""
        return tuple(row for row in self.rows if row.answer is Answer.MISSED)

    def to_json(self) -> bytes:
        """Return the machine-readable matrix."""
        value = {
            "format": FORMAT,
            "tool_version": __version__,
            "seed": self.seed,
            "outputs": self.outputs,
            "pairs": self.pairs,
            "started_unix_s": self.started_unix_s,
            "found": len(self.found),
            "missed": [row.defect for row in self.missed],
            "stray": [row.defect for row in self.strays],
            "unclear": len(self.unclear),
            "rows": [_row_to_json(row) for row in self.rows],
        }
        return msgspec.json.format(msgspec.json.encode(value), indent=1)


def read_matrix(data: bytes) -> Matrix:
    """Read what `Matrix.to_json` wrote."""
    value = msgspec.json.decode(data)
    rows = [row | {"failure_class": row["class"]} for row in value["rows"]]
    return msgspec.convert(value | {"rows": rows}, Matrix)


def strongest(seen: Sequence[Seen]) -> tuple[Seen, ...]:
    """Return one entry for each channel, the strongest of several audits of one engine."""
    strongest_of = []
    for channel in Channel:
        told = [one for one in seen if one.channel is channel]
        outcome = merge_outcomes([one.outcome for one in told])
        strongest_of += [one for one in told if one.outcome is outcome][:1]
    return tuple(strongest_of)


def _row_to_json(row: Row) -> dict[str, object]:
    return {
        "defect": row.defect,
        "class": row.failure_class,
        "rate": row.rate,
        "start": row.start,
        "expected": sorted(row.expected),
        "answer": row.answer,
        "fired": sorted(row.fired),
        "stray": sorted(row.stray),
        "first_request": row.first_request,
        "opportunities": row.opportunities,
        "strikes": row.strikes,
        "seconds": round(row.seconds, 1),
        "seen": row.seen,
    }
