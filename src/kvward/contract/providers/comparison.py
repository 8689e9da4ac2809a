"""Two promises side by side: of two providers, or of anything else that is brought into this form.

A side is rows of text. Whoever wants to compare something new, a contract's file for instance,
writes a function that makes a `Side` of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from kvward.contract.providers.letter import open_questions
from kvward.contract.providers.records import CLAUSES, Provider, Statement

NOT_STATED = "not stated"
_LABEL_COLUMNS = 14
_FACTS = ("set by", "separated by", "kept for", "kept in", "controls", "removed by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two columns.

    Attributes:
        title: Its heading.
        rows: Text by the row's name; a row that is missing is not stated.
    """

    title: str
    rows: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the comparison."""

    name: str
    left: str
    right: str


def side_of_provider(provider: Provider) -> Side:
    """Bring a provider's statements into the form of a column."""
    facts = provider.facts
    values = (
        facts.set_by.value,
        ", ".join(facts.dimensions),
        facts.lifetime or "",
        ", ".join(facts.tiers),
        "; ".join(facts.controls),
        facts.erasure or "",
    )
    rows = {name: value for name, value in zip(_FACTS, values, strict=True) if value}
    for clause, statement in provider.statements.items():
        rows[clause] = _cell(provider, statement)
    label = provider.read_label if provider.read is None else f"read {provider.read_label}"
    return Side(title=f"{provider.title} ({label})", rows=rows)


def compare_sides(left: Side, right: Side) -> tuple[Row, ...]:
    """Put two columns next to each other: facts, then clauses, then what only one of them has."""
    names = dict.fromkeys((*_FACTS, *CLAUSES, *left.rows, *right.rows))
    return tuple(
        Row(
            name=name,
            left=left.rows.get(name, NOT_STATED),
            right=right.rows.get(name, NOT_STATED),
        )
        for name in names
    )


def render_text(left: Side, right: Side, *, columns: int) -> str:
    """Draw the comparison for a terminal that is `columns` wide."""
    width = max(20, (columns - _LABEL_COLUMNS - 2) // 2)
    lines = []
    head = Row(name="", left=left.title, right=right.title)
    for row in (head, *compare_sides(left, right)):
        one = textwrap.wrap(row.left, width)
        two = textwrap.wrap(row.right, width)
        for place in range(max(len(one), len(two))):
            label = row.name if place == 0 else ""
            cells = (column[place] if place < len(column) else "" for column in (one, two))
            first, second = cells
            lines.append(f"{label:{_LABEL_COLUMNS}}{first:{width}}  {second}".rstrip())
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def render_markdown(left: Side, right: Side) -> str:
    """Draw the comparison as a Markdown table."""
    lines = [f"| | {_escape(left.title)} | {_escape(right.title)} |", "|---|---|---|"]
    lines += [
        f"| {row.name} | {_escape(row.left)} | {_escape(row.right)} |"
        for row in compare_sides(left, right)
    ]
    return "\n".join(lines) + "\n"


def _cell(provider: Provider, statement: Statement) -> str:
    num_open = sum(question.clause == statement.clause for question in open_questions(provider))
    rest = f"{num_open} open" if num_open else "nothing open"
    if statement.says is None:
        return f"{NOT_STATED} [{rest}]"
    return f"{statement.says} [{statement.confidence}; {rest}]"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
