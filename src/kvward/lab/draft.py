"""Drafts: cheap guesses at the next tokens, which the model then verifies in one step.

What a request has said so far is all that its guesses come from: for each token the one that
followed it last, and where that is unknown, the most frequent one. A draft state lives in a lane,
which a request has while it runs and which the next one to take it begins anew.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.sequence import Sequence


class DraftState:
    """What one lane has learned. Only tokens that were verified are ever learned.

    Args:
        scope: Of the request that it is for.
    """

    def __init__(self, *, scope: str | None) -> None:
        self.scope = scope
        self._last: int | None = None
        self._followers: dict[int, int] = {}
        self._counts: Counter[int] = Counter()

    def learn(self, tokens: Iterable[int]) -> None:
        """Take in tokens in the order in which they came."""
        for token in tokens:
            if self._last is not None:
                self._followers[self._last] = token
            self._counts[token] += 1
            self._last = token

    def propose(self, after: int, *, num_tokens: int) -> tuple[int, ...]:
        """Guess the tokens after a token; nothing is learned by it.

        Returns:
            (num_tokens,), or nothing when nothing has been learned. Of equally frequent tokens
            the one that came first is guessed.
        """
        if not self._counts:
            return ()
        [(frequent, _)] = self._counts.most_common(1)
        guesses = []
        for _ in range(num_tokens):
            after = self._followers.get(after, frequent)
            guesses.append(after)
        return tuple(guesses)


class Drafter:
    """The lanes of one engine.

    Args:
        num_lanes: As many as requests can run.
        num_tokens: Longest draft; 0 drafts nothing and keeps no state.
    """

    def __init__(self, *, num_lanes: int, num_tokens: int, behaviour: Behaviour) -> None:
        self._num_tokens = num_tokens
        self._behaviour = behaviour
        self._states: list[DraftState | None] = [None] * num_lanes
        self._free = list(range(num_lanes))  # a heap: the lowest number is taken first

    def take_lane(self, sequence: Sequence) -> None:
        """Give a request that begins to run a lane with a state of its own."""
        if not self._num_tokens:
            return
        sequence.lane = lane = heapq.heappop(self._free)
        if self._states[lane] is not None and self._behaviour.slips_once(
            Slip.DRAFT_LANE_NOT_RESET, sequence.slips
        ):
            return
        state = DraftState(scope=sequence.scope)
        state.learn(sequence.tokens)
        self._states[lane] = state

    def leave_lane(self, sequence: Sequence) -> None:
        """Take back the lane of a request that no longer runs, if it has one."""
        if sequence.lane is None:
            return
        if sequence.leaves_nothing:
            self._states[sequence.lane] = None
        heapq.heappush(self._free, sequence.lane)
        sequence.lane = None

    def propose(self, sequence: Sequence, *, at_most: int) -> tuple[int, ...]:
        """Guess the next tokens of a request, no more than may be verified now."""
        state = self._state(sequence)
        if state is None or at_most < 1:
            return ()
        return state.propose(sequence.tokens[-1], num_tokens=min(self._num_tokens, at_most))

    def learn(self, sequence: Sequence, tokens: Iterable[int]) -> None:
        """Take in tokens that the model has chosen for a request."""
        state = self._state(sequence)
        if state is not None:
            state.learn(tokens)

    def trusts(self, sequence: Sequence, *, has_company: bool) -> bool:
        """Tell whether a request's drafts count unverified; never in the sound engine.

        Args:
            has_company: Whether others are computed in the same step.
        """
        return has_company and sequence.slips.get(Slip.DRAFT_LANE_NOT_RESET, False)

    def erase(self, scope: str | None) -> None:
        """Forget what requests of a scope have left in lanes that nobody has."""
        for lane in self._free:
            state = self._states[lane]
            if state is not None and state.scope == scope:
                self._states[lane] = None

    def _state(self, sequence: Sequence) -> DraftState | None:
        return None if sequence.lane is None else self._states[sequence.lane]
