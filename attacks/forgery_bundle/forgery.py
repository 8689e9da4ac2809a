"""What a forgery is: a bundle in memory, and what whoever verifies it brings along."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from attacks.forgery_bundle.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Forged:
    """What is laid before `kvward verify`.

    Attributes:
        files: By name; or an archive that holds them, which is read first.
        known: The checkpoint that whoever verifies has kept; None for nobody's.
    """

    files: dict[str, bytes] | bytes
    known: bytes | None


Forge = Callable[[random.Random, World], Forged]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery:
    """One way to forge a bundle."""

    label: str
    forge: Forge


def other_byte(dice: random.Random, data: bytes) -> bytes:
    """Return data with one byte changed."""
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ dice.randrange(1, 256)]) + data[at + 1 :]
