"""Side doors: what lists of cached state have shown to the wrong tenant."""

from __future__ import annotations

from dataclasses import dataclass

from kvward.audit.verdict import Control, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorEvidence:
    """What the side doors of a target showed.

    They are beside the outputs: what they show violates, and what they do not show bounds nothing.

    Attributes:
        num_asked: How often a door was asked.
        num_there: How often it answered with a list.
        num_unread: Answers with lists of numbers, which may be prompts as token ids.
        findings: Other tenants' words, by name.
    """

    num_asked: int = 0
    num_there: int = 0
    num_unread: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def num_events(self) -> int:
        """Return how many answers showed other tenants' words."""
        return len({finding.trial for finding in self.findings})

    @property
    def reason(self) -> str:
        """Return what was seen, in a sentence."""
        first = self.findings[0]
        return (
            f"A list of what is cached showed words of {first.source} to {first.reader}, and other "
            f"tenants' words in {self.num_events} of {self.num_there} answers."
        )

    @property
    def controls(self) -> tuple[Control, ...]:
        """Return how much of this was looked at; nothing where no door is known."""
        if not self.num_asked:
            return ()
        there = Control(
            name="lists of cached state that were there",
            seen=self.num_there,
            tried=self.num_asked,
            held=True,
        )
        if not self.num_unread:
            return (there,)
        unread = Control(
            name="lists of cached state without token ids, which are not read",
            seen=self.num_there - self.num_unread,
            tried=self.num_there,
            held=False,
        )
        return there, unread


NO_DOORS = DoorEvidence()
