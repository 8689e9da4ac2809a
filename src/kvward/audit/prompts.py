"""Prompts made of code words, one word one token on the canary model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from kvward.audit.canary.codebook import Codebook, Session
from kvward.audit.canary.words import WORDS
from kvward.audit.dialogue import Dialogue, Fate, Version, draw_dialogue
from kvward.audit.plan import BLOCK_TOKENS
from kvward.canonical import encode
from kvward.errors import ConfigError


def derive_random(seed: int, *labels: str | int) -> np.random.Generator:
    """Return a random generator of its own for one purpose of one audit."""
    digest = hashlib.sha256(encode("kvward/audit/random/v1", seed, *labels)).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt and what made it. `recipe` names it in the history; `words` has its tokens.

    Attributes:
        line_words: Words of each line; None where all are in one.
        thread: What prompts of one dialogue have in common, and empty for any other.
    """

    words: tuple[str, ...]
    recipe: str
    line_words: int | None = None
    thread: str = ""

    @property
    def text(self) -> str:
        """Return the prompt as it is sent."""
        if self.line_words is None:
            return " ".join(self.words)
        starts = range(0, len(self.words), self.line_words)
        return "\n".join(" ".join(self.words[i : i + self.line_words]) for i in starts)

    @property
    def own_words(self) -> frozenset[str]:
        """Return every word that an answer to this prompt may show."""
        return frozenset(self.words)


def write_canary_prompt(seed: int, session: Session, *, num_words: int, nonce: int) -> Prompt:
    """Make a prompt that holds the session's whole canary in every full block of 16 tokens.

    A record is twelve words in some order and four of them again. Each record has an order of
    its own, so that two nonces differ from the first block on and share no cached state.
    """
    recipe = f"canary:{session.tenant}/{session.conversation}:{num_words}:{nonce}"
    random = derive_random(seed, recipe)
    words: list[str] = []
    while len(words) < num_words:
        order = random.permutation(len(session.canary))
        words.extend(session.canary[i] for i in order)
        words.extend(session.canary[i] for i in order[: BLOCK_TOKENS - len(order)])
    return Prompt(words=tuple(words[:num_words]), recipe=recipe)


def write_voice_prompt(
    seed: int, session: Session, *, prefix_words: int, num_words: int, nonce: int
) -> Prompt:
    """Make a prompt of the session's few filler words, the same up to `prefix_words`."""
    recipe = f"voice:{session.tenant}/{session.conversation}:{prefix_words}:{num_words}:{nonce}"
    prefix = derive_random(seed, "prefix", session.tenant, session.conversation, prefix_words)
    tail = derive_random(seed, recipe)
    picks = [
        *prefix.integers(len(session.voice), size=prefix_words),
        *tail.integers(len(session.voice), size=max(0, num_words - prefix_words)),
    ]
    words = tuple(session.voice[int(i)] for i in picks)
    return Prompt(words=words[:num_words], recipe=recipe)


def write_lines(
    seed: int, session: Session, *, of_canary: bool, prefix_lines: int, num_lines: int, nonce: int
) -> Prompt:
    """Make lines of the same words, which nearly every language model goes on with.

    Args:
        of_canary: Of the session's canary, else of its filler.
        prefix_lines: How many lines are the same for every nonce.
    """
    words = session.canary if of_canary else session.voice
    sizes = f"{int(of_canary)}:{prefix_lines}:{num_lines}:{nonce}"
    recipe = f"lines:{session.tenant}/{session.conversation}:{sizes}"
    order = derive_random(seed, recipe).permutation(len(words))
    rest = tuple(words[i] for i in order) * max(0, num_lines - prefix_lines)
    return Prompt(words=words * prefix_lines + rest, recipe=recipe, line_words=len(words))


def write_probe_prompt(seed: int, *, num_words: int, nonce: str) -> Prompt:
    """Make a fresh prompt of any code words, for a pair."""
    recipe = f"probe:{num_words}:{nonce}"
    picks = derive_random(seed, recipe).integers(len(WORDS), size=num_words)
    return Prompt(words=tuple(WORDS[int(i)] for i in picks), recipe=recipe)


def open_dialogue(seed: int, session: Session, *, number: int) -> Dialogue:
    """Return a dialogue of a session, the same for the same number."""
    random = derive_random(seed, "dialogue", session.tenant, session.conversation, number)
    return draw_dialogue(random, Codebook(seed=seed), session, number=number)


def write_turn_prompt(dialogue: Dialogue, version: Version) -> Prompt:
    """Make the prompt that asks one version of a turn, with all turns before it."""
    who = f"{dialogue.session.tenant}/{dialogue.session.conversation}"
    thread = f"dialogue:{who}:{dialogue.number}"
    given_up = int(version.fate is not Fate.KEPT)
    return Prompt(
        words=tuple(word for turn in dialogue.history(version) for word in turn.text),
        recipe=f"{thread}:{version.turn}:{given_up}",
        thread=thread,
    )


def read_turn_recipe(recipe: str) -> tuple[int, int, bool] | None:
    """Return the number, the turn and whether it is given up, of a dialogue's recipe.

    Returns:
        None for a recipe of another kind.
    Raises:
        ValueError: No dialogue makes such a recipe.
    """
    if not recipe.startswith("dialogue:"):
        return None
    _, number, turn, given_up = recipe.rsplit(":", 3)
    return int(number), int(turn), given_up == "1"


def repeat_prompt(seed: int, recipe: str, *, session: Session | None) -> Prompt:
    """Make a prompt again, from its recipe in a history.

    Args:
        session: Whose it is; None for a probe.
    Raises:
        ConfigError: It is not a recipe of this session's prompts.
    """
    kind, _, rest = recipe.partition(":")
    try:
        if kind == "probe":
            size, _, name = rest.partition(":")
            return write_probe_prompt(seed, num_words=int(size), nonce=name)
        if session is not None:
            *_, sizes = rest.partition(f"{session.tenant}/{session.conversation}:")
            numbers = [int(text) for text in sizes.split(":")]
            match kind, numbers:
                case "canary", [length, nonce]:
                    return write_canary_prompt(seed, session, num_words=length, nonce=nonce)
                case "lines", [of_canary, prefix, length, nonce]:
                    return write_lines(
                        seed,
                        session,
                        of_canary=bool(of_canary),
                        prefix_lines=prefix,
                        num_lines=length,
                        nonce=nonce,
                    )
                case "voice", [prefix, length, nonce]:
                    return write_voice_prompt(
                        seed, session, prefix_words=prefix, num_words=length, nonce=nonce
                    )
                case "dialogue", [number, turn, (0 | 1) as given_up]:
                    dialogue = open_dialogue(seed, session, number=number)
                    version = dialogue.find(turn, given_up=given_up == 1)
                    return write_turn_prompt(dialogue, version)
    except ValueError:
        pass
    raise ConfigError(f"{recipe!r} is not how a prompt of this session is made.")
