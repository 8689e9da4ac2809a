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
        sizes: dict[Kind, list[float]] = {}
        fresh: dict[Kind, list[Trial]] = {}
        for trial in trials:
            if trial.ending is not Ending.DONE or not (trial.prompt_tokens and trial.prompt_words):
                continue
            sizes.setdefault(_kind(trial), []).append(trial.prompt_tokens / trial.prompt_words)
            if trial.arm is Arm.PROBE_UNPRIMED and trial.told_tokens is not None:
                fresh.setdefault(_kind(trial), []).append(trial)
        self._tokens = {
            kind: _template(fresh.get(kind, ()))
            + ceil(_CHANCE_WORDS * max(1.0, median_low(per_word)))
            for kind, per_word in sizes.items()
        }

    def of(self, trial: Trial) -> int:
        """Return the most tokens whose reuse says nothing of whose state it was."""
        return self._tokens.get(_kind(trial), 0)


def _template(fresh: Sequence[Trial]) -> int:
    """Return how many tokens of a template fresh prompts are usually told to share; 0 for none."""
    if not fresh:
        return 0
    # The second probe of a pair meets the template of the first one.
    by_order: dict[bool | None, list[int]] = {}
    for trial in fresh:
        by_order.setdefault(trial.first, []).append(trial.told_tokens or 0)
    shared = max(median_low(told) for told in by_order.values())
    tokens = median_low(trial.prompt_tokens or 0 for trial in fresh)
    # A word has at least a token; what a prompt has beyond its words bounds what is around them.
    around = median_low((trial.prompt_tokens or 0) - trial.prompt_words for trial in fresh)
    return shared if shared <= min(around, _MOST_OF_A_PROMPT * tokens) else 0


def _kind(trial: Trial) -> Kind:
    return trial.route, trial.scope is ProbeScope.S7
