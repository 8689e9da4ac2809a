"""What a campaign found: every mutation accounted for, by kind and by reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from attacks.hostile_state.mutation import Fate

_EXAMPLES = 20


@dataclass(slots=True, kw_only=True)
class Row:
    """What became of one kind of mutation.

    Attributes:
        applied: Blocks mutated.
        refused: Of them, blocks of which something was refused and that did not open.
        incomplete: Of them, blocks counted as incomplete.
        unseen: Of them, misses without a count: there was no key, or nothing, to look at.
        opened: Of them, blocks that opened, as designed.
        bad_parts: Parts that had to be refused.
        reasons: Refusals of parts, by their reason.
    """

    fate: Fate
    applied: int = 0
    refused: int = 0
    incomplete: int = 0
    unseen: int = 0
    opened: int = 0
    bad_parts: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "fate": self.fate.value,
            "applied": self.applied,
            "refused": self.refused,
            "incomplete": self.incomplete,
            "unseen": self.unseen,
            "opened": self.opened,
            "bad_parts": self.bad_parts,
            "reasons": dict(sorted(self.reasons.items())),
        }


@dataclass(slots=True, kw_only=True)
class Report:
    """What became of all of them.

    Attributes:
        wrong: What must not happen, by what it was; see `Campaign`.
        examples: The first of them, in words.
        controls: Genuine blocks that were read beside the mutated ones, and opened.
    """

    rows: dict[str, Row]
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    controls: int = 0

    @property
    def applied(self) -> int:
        """Return how many mutations were applied."""
        return sum(row.applied for row in self.rows.values())

    @property
    def reasons(self) -> Counter[str]:
        """Return the refusals of parts by reason."""
        return sum((row.reasons for row in self.rows.values()), Counter())

    def total(self, column: str) -> int:
        """Return the sum of a column of the rows."""
        return sum(getattr(row, column) for row in self.rows.values())

    def blame(self, what: str, where: str) -> None:
        """Record what must not happen."""
        self.wrong[what] += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{what}: {where}")

    def check_sums(self) -> None:
        """Record it when a mutation or a refusal is unexplained."""
        if self.applied != sum(
            self.total(column) for column in ("refused", "incomplete", "unseen", "opened")
        ):
            self.blame("mutations unexplained", "sum of all rows")
        if self.reasons.total() != self.total("bad_parts"):
            self.blame("refusals unexplained", "sum of all rows")

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {
            "mutations": self.applied,
            "controls_opened": self.controls,
            "wrong": dict(sorted(self.wrong.items())),
            "examples": self.examples,
            "refused": self.total("refused"),
            "incomplete": self.total("incomplete"),
            "unseen": self.total("unseen"),
            "opened_by_design": self.total("opened"),
            "bad_parts": self.total("bad_parts"),
            "refusals_by_reason": dict(sorted(self.reasons.items())),
            "by_mutation": {label: row.to_json() for label, row in self.rows.items()},
        }

    def render(self) -> str:
        """Render tables by mutation and by reason, for people."""
        width = max(len(label) for label in self.rows)
        lines = [
            f"{'mutation':{width}}  applied  refused  incompl.   unseen   opened  reasons of parts"
        ]
        for label, row in sorted(self.rows.items()):
            reasons = ", ".join(f"{name} {count}" for name, count in sorted(row.reasons.items()))
            lines.append(
                f"{label:{width}} {row.applied:8} {row.refused:8} {row.incomplete:9}"
                f" {row.unseen:8} {row.opened:8}  {reasons}"
            )
        lines.append("")
        lines += [f"{name:20} {count:9}" for name, count in self.reasons.most_common()]
        lines.append("")
        lines.append(
            f"{self.applied} mutations: {self.total('refused')} refused, "
            f"{self.total('incomplete')} incomplete, {self.total('unseen')} unseen, "
            f"{self.total('opened')} opened by design; {self.controls} genuine blocks opened."
        )
        if self.wrong:
            lines += [f"WRONG  {what}: {count}" for what, count in self.wrong.items()]
            lines += [f"       {example}" for example in self.examples]
        else:
            lines.append("Nothing was accepted that must not be, and nothing crashed.")
        return "\n".join(lines) + "\n"
