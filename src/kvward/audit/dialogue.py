"""Dialogues: what one conversation asks turn by turn, and what of it is given up on the way.

The prompt of a turn is the whole history up to it, so that it extends the prompt before. Every turn
has words of its own, which say afterwards what an answer was computed from. In most dialogues one
turn is asked in another version first: that is answered and edited away, or cancelled by the
client. No later answer may show words of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from kvward.audit.canary.codebook import (
    DIALOGUE_TURNS,
    GIVEN_UP_WORDS,
    Codebook,
    Session,
)
from kvward.audit.plan import BLOCK_TOKENS

CANCELLED_ANSWER_TOKENS = 8
"""Asked of a version that is cancelled, so that there is something left to compute."""
_FIRST_BLOCKS = (2, 3, 5)
_NEXT_BLOCKS = (1, 1, 2, 3)
_SHORTEST = 2 * GIVEN_UP_WORDS


class Fate(StrEnum):
    """What becomes of a version of a turn."""

    KEPT = "kept"
    EDITED = "edited"  # answered, then replaced
    CANCELLED = "cancelled"  # the client goes away, then it is replaced


_FATES = {Fate.EDITED: 0.5, Fate.CANCELLED: 0.35, Fate.KEPT: 0.15}


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One wording of one turn.

    Attributes:
        turn: From 1.
        text: What the turn adds to the history.
        words: Its distinct words, which no other version of the dialogue has.
        patience: Of a cancelled one: cancel after this multiple of the usual time to first token.
    """

    turn: int
    fate: Fate
    text: tuple[str, ...]
    words: frozenset[str]
    patience: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """One dialogue of a session.

    Attributes:
        number: Among all dialogues of a plan.
        kept: One version of each turn, in order.
        given_up: Asked before the kept version of its turn; None where every turn is kept.
    """

    session: Session
    number: int
    kept: tuple[Version, ...]
    given_up: Version | None

    @property
    def asked(self) -> tuple[Version, ...]:
        """Return the versions in the order in which they are asked."""
        if self.given_up is None:
            return self.kept
        before = self.given_up.turn - 1
        return (*self.kept[:before], self.given_up, *self.kept[before:])

    @property
    def num_outputs(self) -> int:
        """Return how many finished outputs the dialogue gives."""
        return sum(version.fate is not Fate.CANCELLED for version in self.asked)

    def find(self, turn: int, *, given_up: bool) -> Version:
        """Return a version.

        Raises:
            ValueError: The dialogue has no such version.
        """
        for version in self.asked:
            if version.turn == turn and (version.fate is not Fate.KEPT) is given_up:
                return version
        raise ValueError("The dialogue has no such version.")

    def history(self, version: Version) -> tuple[Version, ...]:
        """Return what a prompt is made of that ends with a version."""
        return (*self.kept[: version.turn - 1], version)


def draw_dialogue(
    random: np.random.Generator, codebook: Codebook, session: Session, *, number: int
) -> Dialogue:
    """Draw a dialogue: its fate, its lengths around block boundaries, its words."""
    kept_words, given_up_words = codebook.dialogue(session, number=number)
    fate = list(_FATES)[int(random.choice(len(_FATES), p=list(_FATES.values())))]
    changed = int(random.integers(1, DIALOGUE_TURNS + 1))
    if changed == DIALOGUE_TURNS and random.random() < 0.5:
        changed -= 1  # behind the last turn only one answer can show it
    kept: list[Version] = []
    given_up = None
    start = 0
    for turn, words in enumerate(kept_words, start=1):
        if fate is not Fate.KEPT and turn == changed:
            given_up = Version(
                turn=turn,
                fate=fate,
                text=_speak(random, given_up_words, start=start),
                words=frozenset(given_up_words),
                patience=float(random.uniform(0, 1.5)),
            )
        text = _speak(random, words, start=start)
        kept.append(Version(turn=turn, fate=Fate.KEPT, text=text, words=frozenset(words)))
        start += len(text)
    return Dialogue(session=session, number=number, kept=tuple(kept), given_up=given_up)


def _speak(random: np.random.Generator, words: tuple[str, ...], *, start: int) -> tuple[str, ...]:
    """Say words over and over, each time in another order, up to a block's end or next to it."""
    choices = _FIRST_BLOCKS if start == 0 else _NEXT_BLOCKS
    blocks = choices[int(random.integers(len(choices)))] + round(start / BLOCK_TOKENS)
    length = max(_SHORTEST, blocks * BLOCK_TOKENS + int(random.integers(-1, 2)) - start)
    said: list[str] = []
    while len(said) < length:
        said.extend(words[int(i)] for i in random.permutation(len(words)))
    return tuple(said[:length])
