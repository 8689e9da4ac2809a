"""Turns of a dialogue in an answer: words of a version that was given up, and turns that are gone.

The rules have the names that the consistency of databases has for them: a stale read shows what
was replaced, a dirty read what was never finished, and a lost own write is one's own that is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvward.audit.canary.words import WORDS
from kvward.audit.detectors.content import Reading, overlap_chance
from kvward.audit.dialogue import Version

DIALOGUE_LEVEL = 5e-7
"""Probability that one whole plan takes other words for a version that was given up; and the same
again that it takes them for another dialogue."""


class Anomaly(StrEnum):
    """What is wrong with an answer inside its own dialogue."""

    STALE = "stale read"
    DIRTY = "dirty read"
    LOST = "lost own write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Words of one set that an answer shows.

    Attributes:
        words: In alphabetical order.
        probability: That a set which was never sent would show as many.
        named: Whether that is so little that it names the set.
    """

    words: tuple[str, ...]
    probability: float
    named: bool


def match_version(
    foreign: frozenset[str],
    version: frozenset[str],
    *,
    own_words: Collection[str],
    num_comparisons: int,
) -> Overlap:
    """Compare foreign words with a version of the answer's own dialogue.

    Args:
        foreign: What the answer shows, without its request's own words.
        version: Words of the version. What the request has itself does not count.
        own_words: Of the request; a version is drawn from all words but these.
        num_comparisons: How often chance is asked in the whole plan.
    """
    only = version.difference(own_words)
    words = only & foreign
    left = len(WORDS) - len(set(own_words))
    probability = overlap_chance(len(words), len(foreign), len(only), left)
    return Overlap(
        words=tuple(sorted(words)),
        probability=probability,
        named=probability * num_comparisons <= DIALOGUE_LEVEL,
    )


def match_dialogue(
    foreign: frozenset[str], sent: frozenset[str], *, num_comparisons: int
) -> Overlap:
    """Compare foreign words with what another dialogue has sent in one prompt."""
    words = sent & foreign
    probability = overlap_chance(len(words), len(foreign), len(sent))
    return Overlap(
        words=tuple(sorted(words)),
        probability=probability,
        named=probability * num_comparisons <= DIALOGUE_LEVEL,
    )


def lost_turns(reading: Reading, history: Sequence[Version]) -> tuple[int, ...]:
    """Return the turns of a prompt of which an answer shows no word at all.

    On the canary model every word of the context stands above the floor. So where the floor is in
    sight, the answer was computed without those turns; no chance takes part in it. An answer that
    shows no turn of its prompt whole is another request's, and has a word in common with it.
    """
    if not reading.measurable or not any(v.words <= reading.own_seen for v in history):
        return ()
    return tuple(version.turn for version in history if version.words.isdisjoint(reading.own_seen))
