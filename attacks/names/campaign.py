"""Try every strategy on world after world."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator

from attacks.names.candidates import KeyedNames, PublicNames, Scores, visible_keys
from attacks.names.ranking import RANKING
from attacks.names.sharing import SHARING
from attacks.names.verdict import Predictor, Verdict, judge_ranks
from attacks.names.world import Guesses, View, build_world

# Naming all guesses under one key takes as long as everything else in a world together.
_KEYS_OF_A_WORLD = 1


def run_campaign(
    *,
    num_worlds: int,
    num_guesses: int,
    seed: int,
    pair: str = "tenants",
    progress: Callable[[int], None] = lambda _: None,
) -> list[Verdict]:
    """Return a verdict on every strategy.

    Args:
        pair: Which two sides there are, one of `PAIRS`.
        seed: Of guesses, prompts, coins and keys; nonces are drawn by the product.
    """
    dice = random.Random(seed)
    guesses = Guesses(num_guesses, seed=seed)
    public, keyed = PublicNames(guesses), KeyedNames(guesses)
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    bits: defaultdict[str, list[bool]] = defaultdict(list)
    predictors: defaultdict[str, Predictor] = defaultdict(Predictor)
    for number in range(num_worlds):
        world = build_world(guesses, dice, pair=pair)
        for strategy, scores in _all_scores(world.view, public, keyed, number):
            ranks[strategy].append(_rank(scores, world.cached, dice))
        for strategy, tell in SHARING.items():
            score, predictor = tell(world.view), predictors[strategy]
            bits[strategy].append(predictor.predict(score) == world.is_shared)
            predictor.learn(score, is_shared=world.is_shared)
        progress(number + 1)
    return judge_ranks(ranks, bits, num_guesses=num_guesses)


def _all_scores(
    view: View, public: PublicNames, keyed: KeyedNames, number: int
) -> Iterator[tuple[str, Scores]]:
    for label, scores in public.scores(view).items():
        yield f"equal to {label}", scores
    labels = list(visible_keys(view.one))
    for place in range(_KEYS_OF_A_WORLD):
        label = labels[(number * _KEYS_OF_A_WORLD + place) % len(labels)]
        yield f"block name, {label} as key", keyed.scores(view, label)
    for label, strategy in RANKING.items():
        yield label, strategy(view)


def _rank(scores: Scores, cached: int, dice: random.Random) -> int:
    """Return how many guesses come before the right one; those as good do by a fair draw."""
    better = int((scores > scores[cached]).sum())
    alike = int((scores == scores[cached]).sum())
    return better + dice.randrange(alike)
