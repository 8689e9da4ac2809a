"""What the canary model answers to a prompt, worked out from its definition.

The checkpoint is one averaging layer, so its answer has a closed form: the share of every word in
the context, once as it is and once weighted by how far back each stands. No engine takes part in
this. What an engine answers otherwise was computed from another context than the request's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from kvward.audit.canary.checkpoint import (
    DEFAULT_GAIN,
    HEAD_DIM,
    HIDDEN,
    MAX_CONTEXT_TOKENS,
    ORDER_NATS,
    ORDER_PAIRS,
    RMS_EPS,
    ROPE_THETA,
    SPECIAL_LOGIT,
    SPECIAL_TOKENS,
)
from kvward.audit.canary.words import WORDS

_NUMBER = {word: number for number, word in enumerate(WORDS)}
# Of a 1 in (one-hot + constant) after the first normalisation, as a share of what the weights
# were made for: the epsilon takes a little.
_SHRINK = math.sqrt((2 / HIDDEN) / (2 / HIDDEN + RMS_EPS))

FloatArray = NDArray[np.float64]


class CanaryReference:
    """Answers of the canary model, for contexts of code words alone.

    Args:
        gain: What the checkpoint was written with.
    """

    def __init__(self, *, gain: float = DEFAULT_GAIN) -> None:
        self._gain = gain
        distance = np.arange(MAX_CONTEXT_TOKENS)
        frequencies = [ROPE_THETA ** (-2 * pair / HEAD_DIM) for pair in ORDER_PAIRS]
        heights = [ORDER_NATS * _SHRINK**2 * np.cos(f * distance) for f in frequencies]
        self._weight_at = np.exp(np.sum(heights, axis=0))  # by distance from the last token

    def logprobs(self, words: Sequence[str]) -> dict[str, float]:
        """Return the natural-log probability of every code word after a context.

        Args:
            words: The context, 1 to 8,192 code words, the last one being the newest.
        Raises:
            KeyError: A word is not a code word.
            ValueError: There is none, or they are too many.
        """
        return dict(zip(WORDS, self._values(words), strict=True))

    def _values(self, words: Sequence[str]) -> list[float]:
        if not 0 < len(words) <= MAX_CONTEXT_TOKENS:
            raise ValueError(f"A context has 1 to {MAX_CONTEXT_TOKENS} words.")
        numbers = np.array([_NUMBER[word] for word in words])
        weights = self._weight_at[len(words) - 1 :: -1][: len(words)]
        counted = np.bincount(numbers, minlength=len(WORDS)) / len(words)
        ordered = np.bincount(numbers, weights=weights, minlength=len(WORDS)) / weights.sum()
        read_out = _SHRINK * (counted + ordered)
        # The residual still holds the one-hot of the last token and the constant.
        scale = 1 / math.sqrt((2 + float(read_out @ read_out)) / HIDDEN + RMS_EPS)
        logits = self._gain * scale * read_out
        special = np.full(len(SPECIAL_TOKENS), SPECIAL_LOGIT * scale)
        total = logsumexp(np.concatenate([special, logits]))
        return [float(value) for value in logits - total]
