"""Attribution is exact: held against counting, with integers, of everything that can happen."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest

from kvward.audit.canary.codebook import CANARY_WORDS, VOICE_WORDS, Codebook, Session
from kvward.audit.canary.words import WORDS
from kvward.audit.detectors.content import ATTRIBUTION_LEVEL, attribute, count_decoy_hits

BOOK = Codebook(seed=17)
SESSION = BOOK.session(tenant="a", conversation="c1")
OTHERS = [word for word in WORDS if word not in SESSION.canary and word not in SESSION.voice]


def foreign_words(canary: int, voice: int, size: int) -> frozenset[str]:
    """So many of the session's canary and voice, filled up with words of neither."""
    return frozenset(
        [*SESSION.canary[:canary], *SESSION.voice[:voice], *OTHERS[: size - canary - voice]]
    )


def tail(seen: int, size: int, num_words: int) -> Fraction:
    """P(a random set of `num_words` of 256 overlaps with `size` given words in `seen` or more)."""
    ways = sum(
        comb(size, k) * comb(len(WORDS) - size, num_words - k)
        for k in range(seen, min(size, num_words) + 1)
    )
    return Fraction(ways, comb(len(WORDS), num_words))


def probability(canary: int, voice: int, size: int) -> float:
    # an infinitesimal number of comparisons lets every session through
    (found,) = attribute(foreign_words(canary, voice, size), [SESSION], num_comparisons=0)
    return found.probability


@pytest.mark.parametrize("size", [1, 6, 12, 13, 20, 40, 120, 238])
def test_probability_is_the_exact_tail(size: int) -> None:
    for canary in range(min(size, CANARY_WORDS) + 1):
        for voice in range(min(size - canary, VOICE_WORDS) + 1):
            if size - canary - voice > len(OTHERS):
                continue
            exact = 2 * min(tail(canary, size, CANARY_WORDS), tail(voice, size, VOICE_WORDS))
            assert probability(canary, voice, size) == pytest.approx(
                min(1.0, float(exact)), rel=1e-9
            )


def chance(canary: int, voice: int, size: int) -> Fraction:
    """P(12 and then 6 more of 256 words, drawn at random, hit so many of `size` given ones)."""
    ways = (
        comb(size, canary)
        * comb(len(WORDS) - size, CANARY_WORDS - canary)
        * comb(size - canary, voice)
        * comb(len(WORDS) - size - CANARY_WORDS + canary, VOICE_WORDS - voice)
    )
    return Fraction(
        ways,
        comb(len(WORDS), CANARY_WORDS) * comb(len(WORDS) - CANARY_WORDS, VOICE_WORDS),
    )


def overlaps(size: int) -> list[tuple[int, int]]:
    return [
        (canary, voice)
        for canary in range(min(size, CANARY_WORDS) + 1)
        for voice in range(min(size - canary, VOICE_WORDS) + 1)
    ]


@pytest.mark.parametrize("size", [3, 12, 18, 30])
def test_probability_is_not_below_its_own_frequency(size: int) -> None:
    """Over every draw of a session that was never sent: P(p <= t) <= t, for every t there is."""
    chances: dict[float, Fraction] = {}
    for canary, voice in overlaps(size):
        p = probability(canary, voice, size)
        chances[p] = chances.get(p, Fraction(0)) + chance(canary, voice, size)
    assert sum(chances.values()) == 1
    reached = Fraction(0)
    for p in sorted(chances):
        reached += chances[p]
        assert float(reached) <= p * (1 + 1e-9)


@pytest.mark.parametrize("size", [6, 12, 24, 60])
@pytest.mark.parametrize("comparisons", [600 * 8, 30_720 * 32])
def test_level_holds_for_the_whole_plan(size: int, comparisons: int) -> None:
    """However often a session that was never sent is asked for, it is named once in a million."""
    named = sum(
        chance(canary, voice, size)
        for canary, voice in overlaps(size)
        if attribute(foreign_words(canary, voice, size), [SESSION], num_comparisons=comparisons)
    )
    assert 0 <= named * comparisons <= Fraction(ATTRIBUTION_LEVEL)


@pytest.mark.parametrize(
    ("num_outputs", "num_sessions", "canary_words"),
    [(600, 8, 7), (10_240, 8, 8), (30_720, 8, 8), (30_720, 32, 9)],
)
def test_words_needed_to_name_a_source_grow_slowly_with_the_plan(
    num_outputs: int, num_sessions: int, canary_words: int
) -> None:
    comparisons = num_outputs * num_sessions
    for seen, named in [(canary_words, True), (canary_words - 1, False)]:
        words = frozenset(SESSION.canary[:seen])
        assert bool(attribute(words, [SESSION], num_comparisons=comparisons)) is named
        decoys = [frozenset(SESSION.canary)]
        assert count_decoy_hits(words, decoys, num_comparisons=comparisons) == int(named)


def test_sessions_of_one_audit_do_not_name_each_other() -> None:
    sessions = [BOOK.session(tenant=t, conversation=f"c{n}") for t in "abcd" for n in range(1, 5)]
    for session in sessions:
        named = attribute(frozenset(session.canary), sessions, num_comparisons=600 * 16)
        assert [found.session for found in named] == [session]


def test_most_certain_source_comes_first() -> None:
    other = Session(
        tenant="b", conversation="c1", canary=tuple(OTHERS[:12]), voice=tuple(OTHERS[12:18])
    )
    words = frozenset(SESSION.canary) | frozenset(other.canary[:9])
    named = attribute(words, [other, SESSION], num_comparisons=0)
    assert [found.session for found in named] == [SESSION, other]
    assert named[0].probability < named[1].probability
    assert set(named[1].words) == set(other.canary[:9])
