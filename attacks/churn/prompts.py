"""Prompts of one session's own words, and later turns that extend them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from kvward.audit.canary.codebook import Session

MOST_WORDS = 10
"""Distinct words of a prompt, so that ten of the twenty listed places stay free for others."""
_SHORTEST_LONG_RATIO = 0.6
_LENGTH_SHARE = {"boundary": 0.6, "tiny": 0.1, "long": 0.15, "any": 0.15}
_TINY_TOKENS = 6
_NEXT_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnPrompt:
    """A prompt, one word one token.

    Attributes:
        ranking: The words that this prompt and its later turns use, most frequent first.
    """

    words: tuple[str, ...]
    ranking: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the prompt as it is sent."""
        return " ".join(self.words)

    @property
    def own_words(self) -> frozenset[str]:
        """Return every word that an answer may, and must, show."""
        return frozenset(self.words)


def distinct_counts(num_words: int, *, most: int = MOST_WORDS) -> list[int]:
    """Divide a length among as many words as can have different counts, largest first.

    Different counts keep two words of the model from being equally likely, so that greedy
    decoding has one answer.
    """
    kinds = 1
    while kinds < most and (kinds + 1) * (kinds + 2) // 2 <= num_words:
        kinds += 1
    smallest = range(1, kinds + 1)
    total = sum(smallest)
    rest = num_words - total
    counts = [number + rest * number // total for number in smallest]
    counts[-1] += num_words - sum(counts)
    return counts[::-1]


def write_prompt(random: np.random.Generator, session: Session, *, num_words: int) -> ChurnPrompt:
    """Make a fresh prompt of a session."""
    order = random.permutation(len(session.canary))[:MOST_WORDS]
    ranking = tuple(session.canary[int(i)] for i in order)
    counts = distinct_counts(num_words)
    words = [word for word, count in zip(ranking, counts, strict=False) for _ in range(count)]
    return ChurnPrompt(words=_shuffle(random, words), ranking=ranking)


def extend_prompt(
    random: np.random.Generator, prompt: ChurnPrompt, *, num_words: int
) -> ChurnPrompt:
    """Make a later turn: the prompt itself, and more of its words up to `num_words`."""
    missing = num_words - len(prompt.words)
    have = Counter(prompt.words)
    wanted = zip(prompt.ranking, distinct_counts(num_words), strict=False)
    more = [word for word, count in wanted for _ in range(max(0, count - have[word]))]
    tail = list(_shuffle(random, more))[:missing]
    tail += [prompt.ranking[0]] * (missing - len(tail))
    return ChurnPrompt(words=prompt.words + tuple(tail), ranking=prompt.ranking)


def draw_length(random: np.random.Generator, *, block_tokens: int, longest: int) -> int:
    """Draw a length: mostly one token around a block's end, sometimes tiny, sometimes long."""
    kind = str(random.choice(list(_LENGTH_SHARE), p=list(_LENGTH_SHARE.values())))
    match kind:
        case "boundary":
            most_blocks = max(1, longest // block_tokens)
            blocks = int(np.exp(random.uniform(0, np.log(most_blocks + 1))))
            length = blocks * block_tokens + int(random.integers(-1, 2))
        case "tiny":
            length = int(random.integers(1, _TINY_TOKENS + 1))
        case "long":
            length = int(random.uniform(_SHORTEST_LONG_RATIO, 1) * longest)
        case _:
            length = int(random.integers(1, longest + 1))
    return min(longest, max(1, length))


def draw_next_length(
    random: np.random.Generator, length: int, *, block_tokens: int, longest: int
) -> int | None:
    """Draw the length of a next turn, around a later block's end; None when it has no room."""
    blocks = length // block_tokens + int(random.integers(1, _NEXT_BLOCKS + 1))
    drawn = blocks * block_tokens + int(random.integers(-1, 2))
    return drawn if length < drawn <= longest else None


def _shuffle(random: np.random.Generator, words: list[str]) -> tuple[str, ...]:
    return tuple(words[int(i)] for i in random.permutation(len(words)))
