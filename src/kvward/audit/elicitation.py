"""Prompts that bring to light which words a model attends to, when it is not the canary model.

The canary model counts words: its logprobs show each one, printed or not. Any other model only
shows what it prints. It is given lines of the same words in the same order, which even a small one
goes on with; so whose words it prints is whose state it attends to, as far as it copies at all.
That is measured by own words read back, and what does not come back is no evidence.
"""

from __future__ import annotations

from kvward.audit.canary.codebook import CANARY_WORDS, VOICE_WORDS, Session
from kvward.audit.prompts import Prompt, write_lines

TEXT_TOKENS = 40
"""Enough for a line of twelve words, with two or three tokens for a word."""


def as_lines(
    seed: int, session: Session, *, of_canary: bool, prefix_words: int, num_words: int, nonce: int
) -> Prompt:
    """Return lines that are about as long as a prompt for the canary model."""
    per_line = CANARY_WORDS if of_canary else VOICE_WORDS
    prefix_lines = prefix_words // per_line
    return write_lines(
        seed,
        session,
        of_canary=of_canary,
        prefix_lines=prefix_lines,
        num_lines=max(prefix_lines + 2, num_words // per_line, 3),
        nonce=nonce,
    )
