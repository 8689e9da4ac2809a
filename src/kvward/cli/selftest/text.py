"""The matrix as text: a line for every engine, a column for every channel."""

from __future__ import annotations

import shlex

from kvward.cli.selftest.matrix import Answer, Matrix, Row, Seen
from kvward.terms import Channel, Outcome

MARKS = {
    Outcome.VIOLATED: "found",
    Outcome.INCONCLUSIVE: "unclear",
    Outcome.NOT_OBSERVED: "-",
}

_LEGEND = (
    "( ) the channel could be expected to see it and did not;  ! it should not have fired.",
    ".   not asked.  -  nothing observed, with a bound.",
    "first: the request of its audit with whose answer the evidence was complete.",
)


def mark(row: Row, channel: Channel) -> str:
    """Return what a channel said of a row, in a word.

    Brackets stand around what the channel could be expected to see and did not; an exclamation
    mark behind an alarm without a cause.
    """
    seen = find_seen(row, channel)
    word = "." if seen is None else MARKS[seen.outcome]
    if channel in row.expected and channel not in row.fired:
        return f"({word})"
    if channel in row.stray:
        return f"{word}!"
    return word


def find_seen(row: Row, channel: Channel) -> Seen | None:
    """Return what a channel said of a row; None where it was not asked."""
    return next((seen for seen in row.seen if seen.channel is channel), None)


def name_of(row: Row) -> str:
    """Return what a row is called: its defect with its rate, or the clean engine's start."""
    if row.defect is None:
        return f"clean {shlex.join(row.start)}".strip()
    return row.defect if row.rate is None else f"{row.defect}:{row.rate:g}"


def render_matrix(matrix: Matrix) -> str:
    """Return the matrix as text."""
    channels = list(Channel)
    wide = max((len(name_of(row)) for row in matrix.rows), default=8) + 2
    lines = ["".join((f"{'engine':{wide}}", f"{'class':12}", *(f"{c:14}" for c in channels),
                      f"{'first':>8}  answer"))]  # fmt: skip
    for row in matrix.rows:
        first = "" if row.first_request is None else f"{row.first_request:,}"
        lines.append(
            "".join(
                (
                    f"{name_of(row):{wide}}",
                    f"{row.failure_class:12}",
                    *(f"{mark(row, channel):14}" for channel in channels),
                    f"{first:>8}  {row.answer}",
                )
            )
        )
    counted = [row for row in matrix.rows if row.defect is not None]
    clean = sum(row.answer is Answer.CLEAN for row in matrix.rows)
    summary = (
        f"{len(matrix.found)} of {len(counted)} defects found, "
        f"{len(matrix.strays)} alarms without a cause, {clean} of "
        f"{len(matrix.rows) - len(counted)} clean engines without an alarm; "
        f"{matrix.outputs:,} outputs under load and {matrix.pairs} pairs for each probe scope, "
        f"seed {matrix.seed}."
    )
    return "\n".join([*lines, "", summary, *_LEGEND])
