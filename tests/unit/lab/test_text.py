"""Sampling, and text that comes token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kvward.errors import UsageError
from kvward.lab.interface import SamplingParams
from kvward.lab.sampling import choose_token, read_logprobs, request_random
from kvward.lab.tokenizer import ChatTokenizer


def byte_tokenizer(*, chat_template: str | None = None) -> ChatTokenizer:
    """One token for each byte: the hardest case for text that comes in pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return ChatTokenizer(tokenizer, chat_template=chat_template, bos_token=None, eos_token=None)


@given(st.text(max_size=20))
def test_streamed_pieces_make_the_whole_text_and_no_broken_character(text: str) -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode(text)
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokens]
    pieces.append(stream.flush())
    assert "".join(pieces) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces if piece not in text)


def test_bytes_that_are_no_text_come_out_in_the_end() -> None:
    tokenizer = byte_tokenizer()
    euro = tokenizer.encode("€")
    stream = tokenizer.stream()
    assert [stream.push(euro[0]), stream.push(euro[1])] == ["", ""]
    assert "\N{REPLACEMENT CHARACTER}" in stream.flush()


def test_template_runs_in_a_sandbox_and_its_refusal_is_said() -> None:
    with pytest.raises(UsageError, match="no chat template"):
        byte_tokenizer().render_chat([])
    nosy = byte_tokenizer(chat_template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(UsageError, match="refuses"):
        nosy.render_chat([{"role": "user", "content": "x"}])


def test_greedy_takes_the_likeliest_and_the_smallest_of_equals() -> None:
    params = SamplingParams(max_tokens=1)
    logits = np.array([0, 3, 3, 1], np.float32)
    assert choose_token(logits, params, request_random(params)) == 1
    biased = SamplingParams(max_tokens=1, logit_bias={3: 5.0})
    assert choose_token(logits, biased, None) == 3
    assert logits.tolist() == [0, 3, 3, 1]


def test_sampling_follows_the_softmax() -> None:
    params = SamplingParams(max_tokens=1, temperature=2.0, seed=1)
    random = request_random(params)
    logits = np.log(np.array([0.1, 0.2, 0.7], np.float32)) * 2
    draws = [choose_token(logits, params, random) for _ in range(4000)]
    shares = np.bincount(draws, minlength=3) / 4000
    # Five standard deviations of a share of 4,000 are below 0.04.
    assert np.abs(shares - [0.1, 0.2, 0.7]).max() < 0.04


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=40),
    st.integers(0, 20),
)
def test_top_logprobs_are_the_largest_with_ties_by_token(values: list[int], top: int) -> None:
    logits = np.array(values, np.float32)
    top = min(top, len(values))
    chosen, rows = read_logprobs(logits, 0, top=top)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert chosen == pytest.approx(exact[0], abs=1e-6)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:top]
    assert [token for token, _ in rows] == expected
    for token, value in rows:
        assert value == pytest.approx(exact[token], abs=1e-6)
