"""What a defect is, and how a set of them changes the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvward.errors import ConfigError
from kvward.lab.behaviour import SOUND, Behaviour
from kvward.terms import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A named error.

    Attributes:
        failure_class: Class of `INCIDENTS.md`, for example "K-SCOPE".
        expected_channels: Where it should show from outside.
        summary: What goes wrong, one sentence.
        plant: Returns the behaviour with the error in it.
    """

    name: str
    failure_class: str
    expected_channels: frozenset[Channel]
    summary: str
    plant: Callable[[Behaviour], Behaviour]


def plant_defects(names: Iterable[str], known: Mapping[str, Defect]) -> Behaviour:
    """Return the sound behaviour with the named defects in it.

    Raises:
        ConfigError: a name is not known.
    """
    behaviour = SOUND
    for name in names:
        if name not in known:
            raise ConfigError(
                f"There is no defect named {name}.", hint="Known are: " + ", ".join(sorted(known))
            )
        behaviour = known[name].plant(behaviour)
    return behaviour
