"""What a defect is."""

from __future__ import annotations

from dataclasses import dataclass

from kvward.lab.behaviour import Slip
from kvward.terms import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A named error.

    Attributes:
        slip: The place in the engine where it happens; its value is the name.
        failure_class: Class of how caches really fail, for example "K-SCOPE".
        channels: Where an outside observer could be expected to see it.
        summary: What goes wrong, one sentence.
        opportunity: For a defect that takes a rate, what the rate is a rate of; None for one that
            is always there. That a slip happens does not yet mean that it does harm.
        start: What `kvward lab serve` must be started with for it to show, besides the defect.
        shows: What traffic shows it, one sentence.
        seen_in: Where real engines had it.
    """

    slip: Slip
    failure_class: str
    channels: frozenset[Channel]
    summary: str
    opportunity: str | None
    start: tuple[str, ...]
    shows: str
    seen_in: str

    @property
    def name(self) -> str:
        """Return the name it is planted by."""
        return self.slip.value

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return all arguments of `kvward` that start a lab with it, at every opportunity."""
        return ("lab", "serve", *self.start, "--defect", self.name)

    @property
    def takes_rate(self) -> bool:
        """Tell whether it can be planted as NAME:RATE."""
        return self.opportunity is not None
