"""Foreign words: found when there, not when not, never guessed when out of sight."""

from math import comb

import numpy as np
import pytest

from kvward.audit.canary.codebook import Codebook
from kvward.audit.canary.words import WORDS
from kvward.audit.detectors.content import (
    ATTRIBUTION_LEVEL,
    attribute,
    count_decoy_hits,
    read_foreign_words,
    read_printed_words,
)

BOOK = Codebook(seed=5)
SESSIONS = [BOOK.session(tenant=t, conversation=f"c{n}") for t in ("a", "b") for n in range(4)]
FLOOR = -5000.25


def position(present: dict[str, float], *, top: int = 20) -> list[tuple[str, float]]:
    """What an engine returns: the most likely words, absent ones exactly tied."""
    everything = {word: present.get(word, FLOOR) for word in WORDS}
    return sorted(everything.items(), key=lambda pair: -pair[1])[:top]


def test_own_words_are_not_foreign() -> None:
    reading = read_foreign_words(
        [position({"acorn": -1.0, "zebra": -2.0})],
        " acorn",
        own_words=frozenset({"acorn", "zebra"}),
    )
    assert reading.measurable
    assert reading.foreign == frozenset()


@pytest.mark.parametrize("lift", [0.3, 1.0, 4000.0])
def test_word_above_the_floor_is_foreign(lift: float) -> None:
    reading = read_foreign_words(
        [position({"acorn": -1.0, "zebra": FLOOR + lift})], "", own_words=frozenset({"acorn"})
    )
    assert reading.foreign == {"zebra"}
    assert reading.measurable


def test_words_at_the_floor_are_absent_although_they_are_listed() -> None:
    listed = position({"acorn": -1.0})
    assert len(listed) == 20
    assert read_foreign_words([listed], "", own_words=frozenset({"acorn"})).foreign == frozenset()


def test_word_that_was_printed_is_foreign_without_logprobs() -> None:
    reading = read_foreign_words([], "the zebra", own_words=frozenset())
    assert reading.foreign == {"zebra"}
    assert not reading.measurable


def test_answer_full_of_words_cannot_be_read_as_clean() -> None:
    own = WORDS[:20]
    full = position({word: -float(n + 1) for n, word in enumerate(own)})
    reading = read_foreign_words([full], "", own_words=frozenset(own))
    assert reading.foreign == frozenset()
    assert not reading.measurable
    crowd = position({word: -float(n + 1) for n, word in enumerate(WORDS[:22])})
    reading = read_foreign_words([crowd], "", own_words=frozenset(own[:6]))
    assert len(reading.foreign) == 13  # the last listed one may itself be the floor
    assert not reading.measurable


def test_one_unreadable_position_makes_the_answer_unreadable() -> None:
    good = position({"acorn": -1.0})
    assert not read_foreign_words([good, []], "", own_words=frozenset({"acorn"})).measurable


def test_token_that_is_no_code_word_is_ignored() -> None:
    strange = [("#1a2b3c4d", -1.0), *position({"acorn": -2.0})]
    assert read_foreign_words([strange], "", own_words=frozenset({"acorn"})).foreign == frozenset()


def test_whole_canary_names_its_session_and_no_other() -> None:
    for session in SESSIONS:
        named = attribute(frozenset(session.canary), SESSIONS, num_comparisons=10**6)
        assert [found.session for found in named] == [session]
        assert named[0].probability == pytest.approx(2 / comb(256, 12), rel=1e-6)


def test_part_of_a_canary_counts_for_what_it_is_worth() -> None:
    session = SESSIONS[0]
    for seen, expected in [(8, True), (5, False), (1, False)]:
        words = frozenset(session.canary[:seen])
        named = attribute(words, SESSIONS, num_comparisons=600 * 8)
        assert bool(named) is expected
        if named:
            assert named[0].probability <= ATTRIBUTION_LEVEL / (600 * 8)


def test_two_sources_are_both_named() -> None:
    both = frozenset(SESSIONS[0].canary) | frozenset(SESSIONS[5].canary)
    named = attribute(both, SESSIONS, num_comparisons=600 * 8)
    assert {found.session for found in named} == {SESSIONS[0], SESSIONS[5]}


def test_random_words_name_nobody_and_no_decoy() -> None:
    random = np.random.default_rng(0)
    decoys = BOOK.decoys(999)
    for _ in range(300):
        size = int(random.integers(1, 16))
        words = frozenset(random.choice(WORDS, size, replace=False).tolist())
        assert not attribute(words, SESSIONS, num_comparisons=600 * 8)
        assert count_decoy_hits(words, decoys, num_comparisons=600 * 8) == 0


def test_decoy_that_is_seen_is_counted() -> None:
    decoys = BOOK.decoys(20)
    assert count_decoy_hits(decoys[3], decoys, num_comparisons=600 * 8) == 1


def test_printed_words_are_read_whoever_wrote_them() -> None:
    own = frozenset(SESSIONS[0].canary)
    told = " ".join([*SESSIONS[0].canary[:3], *SESSIONS[5].canary, "#12ab34cd"])
    reading = read_printed_words(told, own_words=own)
    assert reading.measurable
    named = attribute(reading.foreign, SESSIONS, num_comparisons=10_000)
    assert [found.session for found in named] == [SESSIONS[5]]


@pytest.mark.parametrize("text", ["", "#12ab34cd", "the model says something else"])
def test_answer_without_a_word_of_its_request_is_not_read(text: str) -> None:
    assert not read_printed_words(text, own_words=frozenset(SESSIONS[0].canary)).measurable


def test_a_few_printed_words_of_another_name_nobody() -> None:
    reading = read_printed_words(" ".join(SESSIONS[5].canary[:5]), own_words=frozenset())
    assert attribute(reading.foreign, SESSIONS, num_comparisons=10_000) == []
