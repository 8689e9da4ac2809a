"""What each client does, step by step: pure, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from attacks.churn.prompts import (
    ChurnPrompt,
    draw_length,
    draw_next_length,
    extend_prompt,
    write_prompt,
)
from kvward.audit.canary.codebook import Codebook, Session
from kvward.audit.prompts import derive_random

CONVERSATIONS = 3
"""Conversations of each client."""
_KEPT_PROMPTS = 4
_BURST = (3, 6)
_STREAMED = 0.7
_LEAVES_A_BURST = 0.3
_LEAVES_TWICE = 0.25


class Move(StrEnum):
    """What a step is about."""

    FRESH = "fresh"
    NEXT_TURN = "next-turn"
    REPEAT = "repeat"
    BURST = "burst"
    CANCEL = "cancel"


_SHARE = {
    Move.FRESH: 0.2,
    Move.NEXT_TURN: 0.25,
    Move.REPEAT: 0.2,
    Move.BURST: 0.1,
    Move.CANCEL: 0.25,
}


class Moment(StrEnum):
    """When a client goes away."""

    AT_ONCE = "at-once"  # as soon as the request has been written
    PREFILL = "prefill"  # within the usual time to the first token
    MID_STREAM = "mid-stream"  # after some parts of the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """How a client goes away.

    Attributes:
        patience: For `PREFILL`: this multiple of the usual time to the first token.
        parts: For `MID_STREAM`: after this many parts of the answer.
    """

    moment: Moment
    patience: float
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request.

    Attributes:
        leave: How the client goes away; None when it stays to the end.
        wait: Begin only after this multiple of the usual time to the first token.
    """

    move: Move
    session: Session
    prompt: ChurnPrompt
    max_tokens: int
    streams: bool
    leave: Leave | None = None
    wait: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Requests that one client sends one after another, or all at once."""

    move: Move
    orders: tuple[Order, ...]
    together: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the load is like.

    Attributes:
        block_tokens: The engine's block size; lengths are taken around its multiples.
        longest_tokens: Length of the longest prompt.
        answer_tokens: Length of the longest answer.
    """

    seed: int
    tenants: tuple[str, ...]
    clients: int
    block_tokens: int
    longest_tokens: int
    answer_tokens: int


def client_sessions(shape: Shape, client: int) -> tuple[Session, ...]:
    """Return a client's sessions. Every tenant uses the same names: a name is not a scope."""
    tenant = shape.tenants[client % len(shape.tenants)]
    number = client // len(shape.tenants)
    codebook = Codebook(seed=shape.seed)
    return tuple(
        codebook.session(tenant=tenant, conversation=f"churn-{number}-{i}")
        for i in range(CONVERSATIONS)
    )


def all_sessions(shape: Shape) -> tuple[Session, ...]:
    """Return the sessions of all clients."""
    return tuple(
        session for client in range(shape.clients) for session in client_sessions(shape, client)
    )


def iter_steps(shape: Shape, client: int) -> Iterator[Step]:
    """Yield the steps of one client, without end."""
    random = derive_random(shape.seed, "churn", client)
    writers = [_Writer(shape, random, session) for session in client_sessions(shape, client)]
    moves, shares = list(_SHARE), list(_SHARE.values())
    while True:
        writer = writers[int(random.integers(len(writers)))]
        yield writer.step(moves[int(random.choice(len(moves), p=shares))])


class _Writer:
    """Writes the steps of one session, and remembers its last prompts."""

    def __init__(self, shape: Shape, random: np.random.Generator, session: Session) -> None:
        self._shape = shape
        self._random = random
        self._session = session
        self._recent: list[ChurnPrompt] = []

    def step(self, move: Move) -> Step:
        match move:
            case Move.BURST:
                return self._burst()
            case Move.CANCEL:
                return self._cancel()
            case Move.REPEAT if self._recent:
                return self._one(Move.REPEAT, self._pick(self._recent))
            case Move.NEXT_TURN if self._recent:
                return self._one(Move.NEXT_TURN, self._next_turn(self._recent[-1]))
            case _:
                return self._one(Move.FRESH, self._fresh())

    def _one(self, move: Move, prompt: ChurnPrompt) -> Step:
        self._remember(prompt)
        return Step(move=move, orders=(self._order(move, prompt),))

    def _burst(self) -> Step:
        """Ask for one prefix several times at once: alike, and with tails of their own."""
        fresh = not self._recent or self._random.random() < 0.6
        base = self._fresh(slow=True) if fresh else self._recent[-1]
        others = int(self._random.integers(_BURST[0], _BURST[1] + 1)) - 2
        prompts = [base, base] + [
            base if self._random.random() < 0.5 else self._next_turn(base) for _ in range(others)
        ]
        self._remember(base)
        orders = [self._order(Move.BURST, prompt) for prompt in prompts]
        # All in one moment, or the others while the first one's prefix is being computed.
        longest_wait = float(self._random.choice([0.0, 1.0]))
        orders[1:] = [
            replace(order, wait=float(self._random.uniform(0, longest_wait)))
            for order in orders[1:]
        ]
        orders = [
            replace(order, leave=self._leave(order))
            if self._random.random() < _LEAVES_A_BURST
            else order
            for order in orders
        ]
        return Step(move=Move.BURST, orders=tuple(orders), together=True)

    def _cancel(self) -> Step:
        """Go away once or twice, and ask again right after."""
        fresh = not self._recent or self._random.random() < 0.5
        prompt = self._fresh(slow=True) if fresh else self._next_turn(self._recent[-1])
        self._remember(prompt)
        last = self._order(Move.CANCEL, prompt)
        times = 2 if self._random.random() < _LEAVES_TWICE else 1
        left = tuple(replace(last, leave=self._leave(last)) for _ in range(times))
        return Step(move=Move.CANCEL, orders=(*left, last))

    def _order(self, move: Move, prompt: ChurnPrompt) -> Order:
        kind = self._random.random()
        most = self._shape.answer_tokens
        most = 1 if kind < 0.25 else min(8, most) if kind < 0.6 else most
        return Order(
            move=move,
            session=self._session,
            prompt=prompt,
            max_tokens=int(self._random.integers(1, most + 1)),
            streams=bool(self._random.random() < _STREAMED),
        )

    def _leave(self, order: Order) -> Leave:
        moments = list(Moment) if order.streams and order.max_tokens > 1 else list(Moment)[:2]
        return Leave(
            moment=moments[int(self._random.integers(len(moments)))],
            patience=float(self._random.uniform(0, 1.5)),
            parts=int(self._random.integers(1, max(2, order.max_tokens))),
        )

    def _fresh(self, *, slow: bool = False) -> ChurnPrompt:
        """Write a new prompt. What meets others in its prefill is the longest of three draws."""
        length = max(
            draw_length(
                self._random,
                block_tokens=self._shape.block_tokens,
                longest=self._shape.longest_tokens,
            )
            for _ in range(3 if slow else 1)
        )
        return write_prompt(self._random, self._session, num_words=length)

    def _next_turn(self, prompt: ChurnPrompt) -> ChurnPrompt:
        length = draw_next_length(
            self._random,
            len(prompt.words),
            block_tokens=self._shape.block_tokens,
            longest=self._shape.longest_tokens,
        )
        if length is None:
            return self._fresh()
        return extend_prompt(self._random, prompt, num_words=length)

    def _pick(self, prompts: Sequence[ChurnPrompt]) -> ChurnPrompt:
        return prompts[int(self._random.integers(len(prompts)))]

    def _remember(self, prompt: ChurnPrompt) -> None:
        self._recent = [*self._recent[1 - _KEPT_PROMPTS :], prompt]
