"""Which words belong to which session, and decoys that belong to nobody and are never sent."""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass

import numpy as np

from kvward.audit.canary.words import WORDS
from kvward.canonical import Field, encode

CANARY_WORDS = 12
VOICE_WORDS = 6
CANARY_BITS = math.log2(math.comb(len(WORDS), CANARY_WORDS))
"""Entropy of one canary: log2 C(256, 12) = 66.8 bits."""
DIALOGUE_TURNS = 4
TURN_WORDS = 3
GIVEN_UP_WORDS = 6
"""Of a version that is given up. It stands beside up to twelve words of kept turns, so that all of
them and two absent words fit into the twenty places of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One conversation of one tenant and the words it may use.

    Attributes:
        canary: Twelve distinct words; as a set they name the session.
        voice: Six other words, the session's filler.
    """

    tenant: str
    conversation: str
    canary: tuple[str, ...]
    voice: tuple[str, ...]


class Codebook:
    """Draws the words of every session of one audit from its seed, through HMAC-SHA-256.

    The draw of one session says nothing about another's, and none about the decoys'.
    """

    def __init__(self, *, seed: int) -> None:
        self._key = hashlib.sha256(encode("kvward/audit/codebook-key/v1", seed)).digest()

    def session(self, *, tenant: str, conversation: str) -> Session:
        """Return the words of a session, the same for the same names."""
        words = self._draw(
            CANARY_WORDS + VOICE_WORDS, "kvward/audit/session/v1", tenant, conversation
        )
        return Session(
            tenant=tenant,
            conversation=conversation,
            canary=words[:CANARY_WORDS],
            voice=words[CANARY_WORDS:],
        )

    def decoys(self, num_decoys: int) -> tuple[frozenset[str], ...]:
        """Return canaries drawn in the same way and never sent to anybody."""
        return tuple(
            frozenset(self._draw(CANARY_WORDS, "kvward/audit/decoy/v1", number))
            for number in range(num_decoys)
        )

    def dialogue(
        self, session: Session, *, number: int
    ) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
        """Return the words of every turn of a dialogue, and of a version that is given up.

        No word occurs twice in a dialogue; two dialogues may have words in common.
        """
        kept = DIALOGUE_TURNS * TURN_WORDS
        words = self._draw(
            kept + GIVEN_UP_WORDS,
            "kvward/audit/dialogue/v1",
            session.tenant,
            session.conversation,
            number,
        )
        turns = tuple(words[i : i + TURN_WORDS] for i in range(0, kept, TURN_WORDS))
        return turns, words[kept:]

    def dialogue_decoys(self, num_decoys: int) -> tuple[frozenset[str], ...]:
        """Return versions drawn like one that is given up, and never sent to anybody."""
        return tuple(
            frozenset(self._draw(GIVEN_UP_WORDS, "kvward/audit/dialogue-decoy/v1", number))
            for number in range(num_decoys)
        )

    def _draw(self, num_words: int, label: str, *fields: Field) -> tuple[str, ...]:
        digest = hmac.new(self._key, encode(label, *fields), hashlib.sha256).digest()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
        return tuple(WORDS[int(i)] for i in random.choice(len(WORDS), num_words, replace=False))
