"""What fresh prompts have in common with others all the same: a template, a few words by chance.

Some servers reuse single tokens. Two prompts of random code words begin with the same word once in
256 times, and behind a chat template all prompts do. Neither is state of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median_low

from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.plan import Route
from kvward.terms import ProbeScope

_CHANCE_WORDS = 5
"""Beginning with so many words of another prompt: once in 10^8 audits of 10,000 prompts."""
_MOST_OF_A_PROMPT = 0.25
"""A template is at most such a share of a prompt; more is state that nobody should have."""

Kind = tuple[Route, bool]
"""A route, and whether there is a picture before the prompt."""


class CommonTokens:
    """How many tokens fresh prompts have in common, learnt from those that nobody had primed."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        counts: dict[tuple[Kind, bool | None], list[int]] = {}
        sizes: dict[Kind, list[tuple[int, int]]] = {}
        for trial in trials:
            if trial.ending is not Ending.DONE or trial.scope is None or not trial.prompt_tokens:
                continue
            sizes.setdefault(_kind(trial), []).append((trial.prompt_tokens, trial.prompt_words))
            if trial.arm is Arm.PROBE_UNPRIMED and trial.told_tokens is not None:
                # The second probe of a pair meets the template of the first one.
                counts.setdefault((_kind(trial), trial.first), []).append(trial.told_tokens)
        self._tokens: dict[Kind, int] = {}
        for kind, of_kind in sizes.items():
            usual = [median_low(values) for (one, _), values in counts.items() if one == kind]
            template = max(usual, default=0)
            if template > _MOST_OF_A_PROMPT * median_low(tokens for tokens, _ in of_kind):
                template = 0
            per_word = median_low(max(1.0, tokens / words) for tokens, words in of_kind)
            self._tokens[kind] = template + ceil(_CHANCE_WORDS * per_word)

    def of(self, trial: Trial) -> int:
        """Return the most tokens whose reuse says nothing of whose state it was."""
        return self._tokens.get(_kind(trial), 0)


def _kind(trial: Trial) -> Kind:
    return trial.route, trial.scope is ProbeScope.S7
