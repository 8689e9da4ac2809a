"""The closed form of the canary model agrees with its weights and shows changes of context."""

from __future__ import annotations

import numpy as np
import pytest

from kvward.audit.canary.reference import CanaryReference
from kvward.audit.canary.words import WORDS
from kvward.audit.detectors.differential import measure
from unit.audit.test_canary import FIRST_WORD, last_logits

REFERENCE = CanaryReference()


def answer_of(numbers: np.ndarray, **changed: np.ndarray) -> dict[str, float]:
    """Return the twenty most likely words, from the weights in float32."""
    logits = last_logits(numbers + FIRST_WORD, **changed)
    logprobs = logits - logits.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    top = np.argsort(-logprobs[FIRST_WORD:], kind="stable")[:20]
    return {WORDS[int(i)]: float(logprobs[FIRST_WORD + i]) for i in top}


def draw(num_words: int, *, distinct: int = 10, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.choice(256, distinct, replace=False)[random.integers(distinct, size=num_words)]


def off_by(numbers: np.ndarray, **changed: np.ndarray) -> float:
    expected = REFERENCE.logprobs([WORDS[int(i)] for i in numbers])
    return measure(answer_of(numbers, **changed), expected)


@pytest.mark.parametrize("num_words", [1, 2, 15, 16, 17, 300, 4_000, 8_192])
@pytest.mark.parametrize("distinct", [1, 10, 19])
def test_agrees_with_the_weights(num_words: int, distinct: int) -> None:
    assert off_by(draw(num_words, distinct=distinct)) < 0.02


def test_a_prompt_of_many_words_agrees_as_well() -> None:
    assert off_by(draw(600, distinct=200)) < 0.02


@pytest.mark.parametrize("num_words", [64, 400, 2_000])
def test_every_damage_of_one_block_shows(num_words: int) -> None:
    numbers = draw(num_words)
    for start in range(0, num_words - 32, max(16, num_words // 160 * 16)):
        block = slice(start, start + 16)
        other = numbers.copy()
        other[block] = draw(16, seed=start + 1)
        assert off_by(numbers, values_of=other) > 0.5  # another request's block
        shifted = np.arange(num_words)
        shifted[block] += 16
        assert off_by(numbers, key_places=shifted) > 0.05  # right block, wrong place


def test_swapped_tokens_show() -> None:
    numbers = draw(64, seed=3)
    swapped = numbers.copy()
    swapped[[10, 20]] = swapped[[20, 10]] if numbers[10] != numbers[20] else [1, 2]
    assert off_by(numbers, values_of=swapped) > 0.05


def test_a_likely_word_that_is_not_listed_counts() -> None:
    first, second = WORDS[0], WORDS[1]
    expected = REFERENCE.logprobs([first] * 3 + [second])
    best = dict(sorted(expected.items(), key=lambda item: -item[1])[:20])
    assert measure(best, expected) <= 0
    del best[second]
    assert measure(best, expected) > 10


def test_what_is_no_context_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 8192"):
        REFERENCE.logprobs([])
    with pytest.raises(KeyError):
        REFERENCE.logprobs(["nobody"])
