"""Prompts of the churn client: own words only, one likeliest word, lengths at blocks' ends."""

from collections import Counter

import numpy as np
import pytest
from attacks.churn.prompts import (
    MOST_WORDS,
    distinct_counts,
    draw_length,
    draw_next_length,
    extend_prompt,
    write_prompt,
)

from kvward.audit.canary.codebook import Codebook

SESSION = Codebook(seed=1).session(tenant="a", conversation="c")


@pytest.mark.parametrize("num_words", [*range(1, 80), 511, 512, 513, 1500])
def test_counts_differ_and_add_up(num_words: int) -> None:
    counts = distinct_counts(num_words)
    assert sum(counts) == num_words
    assert counts == sorted(set(counts), reverse=True)
    assert counts[-1] >= 1
    assert len(counts) <= MOST_WORDS
    assert len(counts) == MOST_WORDS or num_words < 55


def test_a_prompt_holds_own_canary_words_only_and_one_is_the_likeliest() -> None:
    random = np.random.default_rng(1)
    for num_words in (1, 2, 31, 32, 33, 700):
        prompt = write_prompt(random, SESSION, num_words=num_words)
        assert len(prompt.words) == len(prompt.text.split()) == num_words
        assert prompt.own_words <= set(SESSION.canary)
        assert prompt.own_words <= set(prompt.ranking)
        assert Counter(prompt.words).most_common(1)[0][0] == prompt.ranking[0]


def test_a_later_turn_begins_with_the_earlier_prompt() -> None:
    random = np.random.default_rng(2)
    prompt = write_prompt(random, SESSION, num_words=3)
    for num_words in (4, 47, 48, 49, 300):
        longer = extend_prompt(random, prompt, num_words=num_words)
        assert longer.words[: len(prompt.words)] == prompt.words
        assert len(longer.words) == num_words
        assert longer.own_words <= set(prompt.ranking)
        prompt = longer
    assert len(prompt.own_words) == MOST_WORDS


def test_lengths_are_concentrated_at_the_ends_of_blocks_and_some_are_tiny_or_long() -> None:
    random = np.random.default_rng(3)
    lengths = [draw_length(random, block_tokens=32, longest=640) for _ in range(2000)]
    assert min(lengths) == 1
    assert 600 < max(lengths) <= 640
    near = [length for length in lengths if length > 6 and (length + 1) % 32 <= 2]
    assert len(near) > len(lengths) / 2
    assert {(length + 1) % 32 for length in near} == {0, 1, 2}


def test_lengths_stay_in_a_context_shorter_than_a_block() -> None:
    random = np.random.default_rng(4)
    assert {draw_length(random, block_tokens=32, longest=2) for _ in range(100)} == {1, 2}


def test_a_next_turn_is_longer_or_has_no_room() -> None:
    random = np.random.default_rng(5)
    for length in range(1, 129):
        drawn = draw_next_length(random, length, block_tokens=16, longest=128)
        assert drawn is None or length < drawn <= 128
    assert draw_next_length(random, 128, block_tokens=16, longest=128) is None
