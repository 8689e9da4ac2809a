"""Answers against what they should be: does anything but the request's own context show?

Corruption of any kind shows here, whether or not its source can be named: a block of another
request, a stale or half-written one, one in the wrong place, a layer that is missing. That it is
somebody's *content* is for the content channel to say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvward.audit.canary.words import CODE_WORDS
from kvward.audit.detectors.content import Position

ROUNDING = 1e-4
"""Share of a logprob by which single precision may move it."""
MIN_MARGIN_NATS = 0.05
MAX_MARGIN_NATS = 1.0
"""An engine whose answers to requests alone differ by more cannot be judged by a reference."""
_SPREAD = 4.0


class Reference(Protocol):
    """Says what the model answers, without an engine."""

    def logprobs(self, words: Sequence[str]) -> Mapping[str, float]:
        """Return the natural-log probability of every code word after a context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far an answer is from what its request alone would give.

    Attributes:
        nats: Of the worst position; None when the answer cannot be compared.
        position: Number of the worst generated token.
    """

    nats: float | None
    position: int | None


def read_deviation(
    positions: Sequence[Position], text: str, *, prompt: Sequence[str], reference: Reference
) -> Deviation:
    """Compare an answer, token by token, with the reference.

    Args:
        positions: For each generated token its most likely tokens, as in the history. [untrusted]
        text: The generated words. [untrusted]
        prompt: The words of the request.
    """
    generated = text.split()
    if not positions or len(generated) < len(positions) - 1:
        return Deviation(nats=None, position=None)
    worst, where = 0.0, 0
    for number, position in enumerate(positions):
        context = [*prompt, *generated[:number]]
        listed = {word: value for word, value in position if word in CODE_WORDS}
        if not listed or not CODE_WORDS.issuperset(generated[:number]):
            return Deviation(nats=None, position=None)
        off = measure(listed, reference.logprobs(context))
        if not off <= worst:
            worst, where = off, number
    return Deviation(nats=worst, position=where)


def measure(listed: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """Return by how much one position differs from what it should be, in nats beyond rounding.

    A word that is missing from the list although it is likelier than the least likely one listed
    counts with the difference to that one.
    """
    least = min(listed.values())
    return max(
        abs(listed.get(word, min(wanted, least)) - wanted) - ROUNDING * abs(wanted)
        for word, wanted in expected.items()
    )


def choose_margin(alone: Sequence[float]) -> float:
    """Return from how many nats on an answer counts as differing.

    Args:
        alone: Deviations of requests that met no cached state.
    """
    if not alone:
        return math.inf
    usual = sorted(alone)[(3 * len(alone)) // 4]
    return max(MIN_MARGIN_NATS, _SPREAD * usual)
