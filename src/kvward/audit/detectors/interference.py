"""Own state that is gone after another tenant's flood.

The reverse of every other count: reuse is expected, and its absence is what is looked for. A pair
counts only where the state was there before the flood, by the same field that says it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import hypergeom

_KEPT = 0.5
"""Share of what was reused before the flood from which on state counts as kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodedPair:
    """What one pair reported. Counts are None where an answer failed or did not have them.

    Attributes:
        trial: Number of the primed probe; None when it was not sent.
        prompt_tokens: Of the primed prompt.
        before, after: Tokens of it that were reused before and after the flood.
        fresh: Tokens reused of a prompt that was never sent.
        num_flooded: Prompts of the flood that were answered.
        again: Tokens reused of the flood's first prompt, asked again at the end.
    """

    trial: int | None
    prompt_tokens: int | None
    before: int | None
    after: int | None
    fresh: int | None
    num_flooded: int
    again: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceReading:
    """What all pairs say.

    Attributes:
        num_pairs: Pairs of which anything was seen.
        num_short: Pairs with a flood that was not answered to its end.
        num_silent: Pairs, flooded, that did not report what was reused.
        num_oversized: Pairs, reported, whose prompt is larger than what is promised.
        num_absent: Pairs, reported, without reuse even before the flood: nothing to lose.
        num_counted: The others.
        lost: The primed probes of those that had lost their state.
        num_fresh_told, num_fresh_zero: Counted pairs that report a fresh prompt, and report no
            reuse of it: that a loss can be seen.
        num_again_told, num_pressed: Counted pairs that report the flood's first prompt at the end,
            and report it gone.
    """

    num_pairs: int
    num_short: int
    num_silent: int
    num_oversized: int
    num_absent: int
    num_counted: int
    lost: tuple[int, ...]
    num_fresh_told: int
    num_fresh_zero: int
    num_again_told: int
    num_pressed: int


def read_floods(
    pairs: Sequence[FloodedPair], *, num_flood_prompts: int, protected_tokens: int
) -> InterferenceReading:
    """Read all pairs with a flood."""
    whole = [pair for pair in pairs if pair.num_flooded >= num_flood_prompts]
    told = [
        pair
        for pair in whole
        if pair.before is not None and pair.after is not None and pair.prompt_tokens is not None
    ]
    fitting = [pair for pair in told if (pair.prompt_tokens or 0) < protected_tokens]
    counted = [pair for pair in fitting if pair.before]
    return InterferenceReading(
        num_pairs=len(pairs),
        num_short=len(pairs) - len(whole),
        num_silent=len(whole) - len(told),
        num_oversized=len(told) - len(fitting),
        num_absent=len(fitting) - len(counted),
        num_counted=len(counted),
        lost=tuple(
            pair.trial
            for pair in counted
            if pair.trial is not None and (pair.after or 0) < _KEPT * (pair.before or 0)
        ),
        num_fresh_told=sum(pair.fresh is not None for pair in counted),
        num_fresh_zero=sum(pair.fresh == 0 for pair in counted),
        num_again_told=sum(pair.again is not None for pair in counted),
        num_pressed=sum(
            pair.again is not None and pair.again < _KEPT * (pair.before or 0) for pair in counted
        ),
    )


def loss_probability(
    *, num_lost: int, num_flooded: int, num_missed: int, num_controls: int
) -> float:
    """Return how likely as many losses are, or more, if floods did nothing (Fisher, one-sided).

    Args:
        num_missed: Positive controls without reuse, of `num_controls`: losses without a flood.
    """
    if num_lost == 0:
        return 1.0
    return float(
        hypergeom.sf(num_lost - 1, num_flooded + num_controls, num_lost + num_missed, num_flooded)
    )
