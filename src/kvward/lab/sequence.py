"""A request while the scheduler works on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from kvward.lab.behaviour import Slip
from kvward.lab.interface import DurableBlocks, GenerationRequest, TokenEvent
from kvward.lab.naming import BlockNames
from kvward.lab.variants import Variant


@dataclass(slots=True, kw_only=True, eq=False)
class HeldBlock:
    """A block in a request's table.

    Attributes:
        pinned: Whether the pool counts this request as a holder.
        generation: Of the ward's lease; 0 without a ward.
    """

    block: int
    pinned: bool
    generation: int


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request: its tokens, its blocks, and how far it is computed.

    Attributes:
        durable: What its scope has outside the engine; None when nothing is kept for it.
        names: What its blocks are called.
        variant: What it runs on.
        seen_prompt: The prompt as the model takes it in, pictures as the words they show.
        scope: Under which its blocks are found; None is a scope of its own.
        tokens: Prompt and generated tokens.
        num_computed: Tokens whose keys and values are in its blocks.
        num_published: Full blocks that have been offered to the index.
        cached_tokens: Prompt tokens reused when it was first admitted.
        slot_id: The slot it has; None before it has one, and without slots.
        leaves_nothing: Whether its blocks stay out of the index from now on.
        lane: Of its draft state; None while it does not run, and without drafts.
        num_reported: Blocks that `cached_tokens` will speak of.
        num_loading: Blocks of its prefix that are on their way from the host tier.
        slips: What has been decided to go wrong for it, or not to.
    """

    request: GenerationRequest
    on_event: Callable[[TokenEvent], None]
    scope: str | None
    names: BlockNames
    variant: Variant
    seen_prompt: list[int]
    random: np.random.Generator | None
    tokens: list[int]
    durable: DurableBlocks | None
    held: list[HeldBlock] = field(default_factory=list)
    num_computed: int = 0
    num_published: int = 0
    cached_tokens: int | None = None
    slot_id: int | None = None
    lane: int | None = None
    leaves_nothing: bool = False
    num_reported: int = 0
    num_loading: int = 0
    slips: dict[Slip, bool] = field(default_factory=dict)

    @property
    def warded_scope(self) -> str:
        """Return the scope that a ward has given; a ward always gives one."""
        assert self.scope is not None  # noqa: S101 - a ward's admit returns text
        return self.scope

    @property
    def num_generated(self) -> int:
        """Return how many tokens have been generated."""
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def num_waiting(self) -> int:
        """Return how many tokens have to be computed before the next one can be chosen."""
        return len(self.tokens) - self.num_computed

    def seen_tokens(self, begin: int, end: int) -> list[int]:
        """Return some of its tokens as the model takes them in."""
        return self.seen_prompt[begin:end] + self.tokens[max(begin, len(self.seen_prompt)) : end]

    def iter_leases(self) -> Iterator[tuple[int, int]]:
        """Yield block and generation of everything it relies on."""
        for held in self.held:
            yield held.block, held.generation
