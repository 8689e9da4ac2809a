"""Foreign words in an answer: read them, and say whose they are with an exact probability."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from scipy.stats import hypergeom

from kvward.audit.canary.codebook import CANARY_WORDS, VOICE_WORDS, Session
from kvward.audit.canary.words import CODE_WORDS, WORDS

ATTRIBUTION_LEVEL = 1e-6
"""Probability of any false attribution in a whole plan."""

# The height, in nats, from which a word counts as standing above the floor. On the canary model
# absent words are exactly tied; the smallest step above them is a third of a nat.
_ABOVE_FLOOR_NATS = 0.05

Position = Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one answer shows.

    Attributes:
        foreign: Code words that the request itself did not hold.
        measurable: False when an answer cannot be read: no logprobs, or so many words above the
            floor that a foreign one could be out of sight. Never counts as clean.
        own_seen: Code words of the request that were seen.
    """

    foreign: frozenset[str]
    measurable: bool
    own_seen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """A session whose words an answer shows.

    Attributes:
        words: The session's words that were seen.
        probability: That a session's words which were never sent would show as many.
    """

    session: Session
    words: tuple[str, ...]
    probability: float


def read_foreign_words(
    positions: Sequence[Position], text: str, *, own_words: frozenset[str]
) -> Reading:
    """Read an answer of the canary model.

    Args:
        positions: For each generated token its most likely tokens with natural-log
            probabilities. [untrusted]
        text: The generated text. [untrusted]
        own_words: Words of the request's own prompt.
    """
    seen: set[str] = {word for word in text.split() if word in CODE_WORDS}
    measurable = bool(positions)
    for position in positions:
        if not position:
            measurable = False
            continue
        # Of code words only: some servers list another token below all others.
        values = {word: value for word, value in position if word in CODE_WORDS}
        floor = min(values.values(), default=0.0)
        # Two entries at the bottom that are exactly tied are the floor of absent words. With one,
        # every listed word may be present, and more may be cut off: those above it are, though.
        measurable = measurable and list(values.values()).count(floor) >= 2
        # The request's own words must stand above it, or nothing of its own state was attended to.
        above = {word for word, value in values.items() if value > floor + _ABOVE_FLOOR_NATS}
        measurable = measurable and (not own_words or not own_words.isdisjoint(above))
        seen |= above
    return Reading(
        foreign=frozenset(seen - own_words),
        measurable=measurable,
        own_seen=frozenset(seen & own_words),
    )


def read_printed_words(text: str, *, own_words: frozenset[str]) -> Reading:
    """Read an answer of any model that was asked to go on with its prompt.

    Args:
        text: The generated text, code words separated by white space. [untrusted]
        own_words: Words of the request's own prompt; one of them has to be printed, or nothing is
            said of what the model attended to.
    """
    printed = CODE_WORDS.intersection(text.split())
    return Reading(foreign=printed - own_words, measurable=not printed.isdisjoint(own_words))


def attribute(
    foreign: frozenset[str], sessions: Iterable[Session], *, num_comparisons: int
) -> list[Attribution]:
    """Name the sessions whose words were seen, most certain first.

    Args:
        num_comparisons: Outputs of the plan times its sessions: how often chance is asked.
    """
    found = []
    for session in sessions:
        words, probability = _overlap(foreign, session)
        if probability * num_comparisons <= ATTRIBUTION_LEVEL:
            found.append(Attribution(session=session, words=words, probability=probability))
    return sorted(found, key=lambda attribution: attribution.probability)


def count_decoy_hits(
    foreign: frozenset[str], decoys: Sequence[frozenset[str]], *, num_comparisons: int
) -> int:
    """Return how many canaries that were never sent the same rule would name."""
    return sum(
        overlap_chance(len(foreign & decoy), len(foreign), CANARY_WORDS) * 2 * num_comparisons
        <= ATTRIBUTION_LEVEL
        for decoy in decoys
    )


def _overlap(foreign: frozenset[str], session: Session) -> tuple[tuple[str, ...], float]:
    canary = tuple(word for word in session.canary if word in foreign)
    voice = tuple(word for word in session.voice if word in foreign)
    by_canary = overlap_chance(len(canary), len(foreign), CANARY_WORDS)
    by_voice = overlap_chance(len(voice), len(foreign), VOICE_WORDS)
    words = canary if by_canary <= by_voice else voice
    return words, min(1.0, 2 * min(by_canary, by_voice))  # the better of two looks costs a factor


@lru_cache(maxsize=4096)
def overlap_chance(
    num_seen: int, num_foreign: int, num_words: int, num_all: int = len(WORDS)
) -> float:
    """Return P(a random set of `num_words` of all words overlaps in `num_seen` or more)."""
    if num_seen == 0:
        return 1.0
    return float(hypergeom.sf(num_seen - 1, num_all, num_foreign, num_words))
