"""Tokens are chosen as asked; logprobs are those of the raw distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvward.lab.interface import SamplingParams
from kvward.lab.sampling import choose_token, read_logprobs, request_random

LOGITS = np.array([0.5, 2.0, -1.0, 2.0, 0.0], np.float32)


def params(
    *,
    temperature: float = 0.0,
    seed: int | None = None,
    logit_bias: dict[int, float] | None = None,
) -> SamplingParams:
    return SamplingParams(
        max_tokens=1, temperature=temperature, seed=seed, logit_bias=logit_bias or {}
    )


def test_greedy_takes_the_most_likely_and_the_smaller_id_of_two() -> None:
    assert choose_token(LOGITS, params(), request_random(params())) == 1


def test_bias_decides_and_does_not_stay_in_the_logits() -> None:
    before = LOGITS.copy()
    assert choose_token(LOGITS, params(logit_bias={2: 100.0}), None) == 2
    assert choose_token(LOGITS, params(logit_bias={1: -0.5}), None) == 3
    np.testing.assert_array_equal(LOGITS, before)


def test_same_seed_draws_the_same_and_another_seed_does_not() -> None:
    def draw(seed: int) -> list[int]:
        sampling = params(temperature=2.0, seed=seed)
        random = request_random(sampling)
        return [choose_token(LOGITS, sampling, random) for _ in range(40)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_of_biased_logits_at_the_temperature(temperature: float) -> None:
    bias = {0: 1.0, 4: -0.5}
    sampling = params(temperature=temperature, seed=5, logit_bias=bias)
    random = request_random(sampling)
    draws = 4_000
    seen = np.bincount([choose_token(LOGITS, sampling, random) for _ in range(draws)], minlength=5)
    biased = LOGITS.astype(np.float64)
    for token_id, value in bias.items():
        biased[token_id] += value
    share = np.exp(biased / temperature)
    assert stats.chisquare(seen, draws * share / share.sum()).pvalue > 1e-3


def test_logprobs_are_raw_whatever_was_chosen() -> None:
    expected = np.log(np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum())
    logprob, top = read_logprobs(LOGITS, 2, top=3)
    assert logprob == pytest.approx(expected[2], abs=1e-6)
    assert [token_id for token_id, _ in top] == [1, 3, 0]
    assert [value for _, value in top] == pytest.approx(expected[[1, 3, 0]], abs=1e-6)


def test_no_alternatives_are_given_when_none_are_wanted() -> None:
    logprob, top = read_logprobs(LOGITS, 1, top=0)
    assert top == ()
    assert logprob < 0


@given(
    logits=st.lists(st.integers(-4, 4), min_size=1, max_size=30),
    data=st.data(),
)
def test_top_is_what_a_full_sort_gives_ties_by_id(logits: list[int], data: st.DataObject) -> None:
    top = data.draw(st.integers(1, len(logits)))
    values = np.array(logits, np.float32)
    _, listed = read_logprobs(values, 0, top=top)
    expected = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top]
    assert [token_id for token_id, _ in listed] == expected


def test_probabilities_add_up_to_one_far_from_zero() -> None:
    logits = np.array([500.0, 499.0, -500.0], np.float32)
    _, top = read_logprobs(logits, 0, top=3)
    assert sum(np.exp(value) for _, value in top) == pytest.approx(1.0, abs=1e-5)
