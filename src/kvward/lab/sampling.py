"""From logits to a token and its logprobs."""

from __future__ import annotations

import numpy as np

from kvward.lab.interface import FloatArray, SamplingParams

TopLogprobs = tuple[tuple[int, float], ...]


def request_random(sampling: SamplingParams) -> np.random.Generator | None:
    """Return the random generator of a request, or None when it is greedy."""
    if sampling.temperature <= 0:
        return None
    seed = None if sampling.seed is None else sampling.seed % 2**64  # callers send negative ones
    return np.random.default_rng(seed)


def choose_token(
    logits: FloatArray, sampling: SamplingParams, random: np.random.Generator | None
) -> int:
    """Choose the next token from (vocab,) logits; the smallest id wins a tie when greedy."""
    if sampling.logit_bias:
        logits = logits.copy()
        for token_id, bias in sampling.logit_bias.items():
            logits[token_id] += bias
    if random is None:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / sampling.temperature
    # The largest of logits with Gumbel noise is a draw from their softmax.
    return int(np.argmax(scaled + random.gumbel(size=len(scaled))))


def read_logprobs(logits: FloatArray, token_id: int, *, top: int) -> tuple[float, TopLogprobs]:
    """Return the logprob of the chosen token and of the most likely ones, of raw logits.

    Ties are listed by token id, smallest first.
    """
    peak = logits.max()
    log_total = np.log(np.exp(logits - peak, dtype=np.float64).sum()) + peak
    logprobs = logits - log_total
    if top == 0:
        return float(logprobs[token_id]), ()
    # Everything that could be among the top, ties at the border included.
    border = np.partition(logits, len(logits) - top)[len(logits) - top]
    candidates = np.flatnonzero(logits >= border)
    order = candidates[np.argsort(-logits[candidates], kind="stable")][:top]
    return float(logprobs[token_id]), tuple((int(i), float(logprobs[i])) for i in order)
