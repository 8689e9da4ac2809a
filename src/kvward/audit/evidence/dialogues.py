"""Which trials are turns of which dialogues, and whose dialogue foreign words are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvward.audit.canary.codebook import Session
from kvward.audit.detectors.turns import Overlap, match_dialogue
from kvward.audit.dialogue import Dialogue, Version
from kvward.audit.history import Trial
from kvward.audit.plan import Plan
from kvward.audit.prompts import open_dialogue, read_turn_recipe
from kvward.audit.sessions import audit_sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A trial that asked a version of a turn."""

    trial: Trial
    dialogue: Dialogue
    version: Version

    @property
    def history(self) -> tuple[Version, ...]:
        """Return what its prompt was made of."""
        return self.dialogue.history(self.version)

    @property
    def own_words(self) -> frozenset[str]:
        """Return the words of its prompt."""
        return frozenset().union(*(version.words for version in self.history))


class Dialogues:
    """The dialogues of a plan, as far as trials of a history belong to them."""

    def __init__(self, plan: Plan, trials: Sequence[Trial]) -> None:
        self._seed = plan.seed
        self._sessions = {(s.tenant, s.conversation): s for s in audit_sessions(plan)}
        self._known: dict[int, Dialogue] = {}
        self.turns = tuple(self._iter_turns(trials))
        self._turn_of = {turn.trial.number: turn for turn in self.turns}
        # One prompt of a dialogue holds all kept turns, and another the version given up.
        self._sent = [
            (dialogue, frozenset().union(*(version.words for version in history)))
            for dialogue in self._known.values()
            for history in _longest(dialogue)
        ]
        self._num_outputs = plan.sizes.content_outputs

    def _iter_turns(self, trials: Sequence[Trial]) -> Iterator[Turn]:
        for trial in trials:
            recipe = None if trial.scope is not None else read_turn_recipe(trial.prompt)
            if recipe is None:
                continue
            number, turn, given_up = recipe
            dialogue = self._known.get(number)
            if dialogue is None:
                session = self._sessions[trial.tenant, trial.conversation]
                dialogue = open_dialogue(self._seed, session, number=number)
                self._known[number] = dialogue
            yield Turn(
                trial=trial, dialogue=dialogue, version=dialogue.find(turn, given_up=given_up)
            )

    def name(self, foreign: frozenset[str], *, trial: int) -> tuple[Session, Overlap] | None:
        """Return whose other dialogue words are of, the most certain one; None where it is none's.

        Args:
            trial: The one that showed them; its own dialogue is left out.
        """
        own = self._turn_of.get(trial)
        best: tuple[Session, Overlap] | None = None
        comparisons = self._num_outputs * len(self._sent)
        for dialogue, words in self._sent:
            if own is not None and own.dialogue.number == dialogue.number:
                continue
            overlap = match_dialogue(foreign, words, num_comparisons=comparisons)
            if overlap.named and (best is None or overlap.probability < best[1].probability):
                best = dialogue.session, overlap
        return best


def _longest(dialogue: Dialogue) -> Iterator[tuple[Version, ...]]:
    yield dialogue.kept
    if dialogue.given_up is not None:
        yield dialogue.history(dialogue.given_up)
