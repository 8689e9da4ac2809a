"""A report held against its history: every verdict is worked out again, and every field compared.

What cannot follow from a history is taken from the report: title, note, when it began and how long
it took. All else has to be, byte for byte, what this version writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from kvward.audit.history import Trial, parse_history
from kvward.audit.judge import judge
from kvward.audit.replay import MAX_REPORT_BYTES
from kvward.audit.report.model import AuditReport, make_report
from kvward.errors import AuditError, ReportError

MAX_PAIRS = 100_000
MAX_OUTPUTS = 10_000_000
_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejudged:
    """A history, judged again.

    Attributes:
        report: As it should be.
        differences: Where the report that was given is otherwise: name of the field, what it says,
            and what the history gives.
    """

    report: AuditReport
    trials: Sequence[Trial]
    differences: tuple[str, ...]


class _Told(msgspec.Struct, kw_only=True):
    """What is taken from a report as it says it."""

    title: str
    note: str
    started_unix_s: Annotated[int, Meta(ge=0, le=2**53 - 1)]
    duration_s: Annotated[float, Meta(ge=0)]


def rejudge(history: bytes, report: bytes, *, history_digest: str) -> Rejudged:
    """Judge a history again and compare a report with what comes of it. Pure.

    Args:
        history: JSON Lines. [untrusted]
        report: JSON. [untrusted]
        history_digest: SHA-256 of the history.
    Raises:
        AuditError: The history is none of this version, or is one that no audit leaves.
        ReportError: The report is none.
    """
    plan, trials = parse_history(history, name="The history")
    if plan.sizes.pairs > MAX_PAIRS or plan.sizes.content_outputs > MAX_OUTPUTS:
        raise AuditError("The history's plan is larger than any that an audit makes.")
    value, told = _parse_report(report)
    try:
        expected = make_report(
            title=told.title,
            note=told.note,
            plan=plan,
            judgement=judge(plan, trials, history_digest=history_digest),
            trials=trials,
            started_unix_s=told.started_unix_s,
            duration_s=told.duration_s,
        )
        wanted = expected.to_json()
    # Whatever a made-up history does to the rules: it is none that an audit leaves.
    except Exception as exc:
        raise AuditError(f"The history cannot be judged: {type(exc).__name__}.") from exc
    differences = list(_compare("", value, msgspec.json.decode(wanted)))
    if not differences and report != wanted:
        differences = ["the same values are written in another way"]
    return Rejudged(report=expected, trials=trials, differences=tuple(differences))


def _parse_report(report: bytes) -> tuple[object, _Told]:
    if len(report) > MAX_REPORT_BYTES:
        raise ReportError("The report is larger than any report is.")
    try:
        value: object = msgspec.json.decode(report)
        return value, msgspec.convert(value, _Told)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise ReportError(f"The report is not one: {exc}.") from exc


def _compare(place: str, given: object, expected: object) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(expected, dict):
        for name in [*expected, *(name for name in given if name not in expected)]:
            below = f"{place}.{name}" if place else str(name)
            if name not in given or name not in expected:
                yield f"{below} is {'missing' if name not in given else 'too much'}"
            else:
                yield from _compare(below, given[name], expected[name])
    elif isinstance(given, list) and isinstance(expected, list):
        if len(given) != len(expected):
            yield f"{place} has {len(given)} items, the history gives {len(expected)}"
        for number, pair in enumerate(zip(given, expected, strict=False)):
            yield from _compare(f"{place}[{number}]", *pair)
    elif type(given) is not type(expected) or given != expected:
        yield f"{place} is {_short(given)}, the history gives {_short(expected)}"


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
