"""What one method said of one server."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Says(StrEnum):
    """A method's answer in its own terms, brought to the words of one table."""

    FOUND = "found"
    NOTHING_FOUND = "nothing found"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One method's answer.

    Attributes:
        detail: What the answer rests on, in figures.
        num_requests: Requests sent to the server.
        seconds: Until the answer, with the method's own start; starting the server and installing
            are left out.
    """

    says: Says
    detail: str
    num_requests: int
    seconds: float
