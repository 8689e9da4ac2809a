"""From names, some with a rate, to the behaviour of an engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from kvward.errors import ConfigError
from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.defects.defect import Defect


def plant_defects(names: Iterable[str], known: Mapping[str, Defect], *, seed: int = 0) -> Behaviour:
    """Return the behaviour with the named defects in it.

    Args:
        names: Each "NAME", or "NAME:RATE" with the probability per opportunity, 0 < RATE <= 1.
            Without a rate it happens at every opportunity. [untrusted]
        seed: Decides which opportunities are struck.
    Raises:
        ConfigError: A name is not known or given twice, or a rate is not one or not possible.
    """
    rates: dict[Slip, float] = {}
    for text in names:
        name, colon, rate = text.partition(":")
        defect = known.get(name)
        if defect is None:
            raise ConfigError(
                f"There is no defect named {name}.", hint="Known are: " + ", ".join(sorted(known))
            )
        if defect.slip in rates:
            raise ConfigError(f"The defect {name} is given twice.")
        rates[defect.slip] = _parse_rate(rate, defect) if colon else 1.0
    return Behaviour(rates, seed=seed)


def _parse_rate(text: str, defect: Defect) -> float:
    if not defect.takes_rate:
        raise ConfigError(
            f"The defect {defect.name} takes no rate.",
            hint="It is in how the engine is built, and is there for every request.",
        )
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1:
        raise ConfigError(
            f"{text!r} is not a rate for the defect {defect.name}.",
            hint=f"Give a probability, such as {defect.name}:0.0003.",
        )
    return rate
