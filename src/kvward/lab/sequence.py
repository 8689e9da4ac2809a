"""A request while the scheduler works on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from kvward.blocks.chain import derive_chain_link
from kvward.lab.behaviour import Slip
from kvward.lab.interface import DurableBlocks, GenerationRequest, TokenEvent


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
        content_root: Where the chain of names without a scope begins, for `durable`.
        scope: Under which its blocks are found; None is a scope of its own.
        tokens: Prompt and generated tokens.
        num_computed: Tokens whose keys and values are in its blocks.
        num_published: Full blocks that have been offered to the index.
        cached_tokens: Prompt tokens reused when it was first admitted.
        slips: What has been decided to go wrong for it, or not to.
    """

    request: GenerationRequest
    on_event: Callable[[TokenEvent], None]
    scope: str | None
    chain_root: bytes
    random: np.random.Generator | None
    tokens: list[int]
    durable: DurableBlocks | None
    content_root: bytes
    held: list[HeldBlock] = field(default_factory=list)
    num_computed: int = 0
    num_published: int = 0
    cached_tokens: int | None = None
    slips: dict[Slip, bool] = field(default_factory=dict)
    _hashes: list[bytes] = field(default_factory=list)
    _content_hashes: list[bytes] = field(default_factory=list)

    @property
    def num_generated(self) -> int:
        """Return how many tokens have been generated."""
        return len(self.tokens) - len(self.request.prompt_token_ids)

    @property
    def num_waiting(self) -> int:
        """Return how many tokens have to be computed before the next one can be chosen."""
        return len(self.tokens) - self.num_computed

    def block_hash(self, number: int, *, block_tokens: int) -> bytes:
        """Return the hash of a full block, computed once."""
        return self._link(self._hashes, self.chain_root, number, block_tokens)

    def content_hash(self, number: int, *, block_tokens: int) -> bytes:
        """Return the hash of a full block without its scope, computed once."""
        return self._link(self._content_hashes, self.content_root, number, block_tokens)

    def _link(self, hashes: list[bytes], root: bytes, number: int, block_tokens: int) -> bytes:
        while len(hashes) <= number:
            begin = len(hashes) * block_tokens
            parent = hashes[-1] if hashes else root
            tokens = self.tokens[begin : begin + block_tokens]
            # Tokens are all that the lab's model takes in.
            hashes.append(derive_chain_link(parent, tokens, extras=()))
        return hashes[number]

    def iter_leases(self) -> Iterator[tuple[int, int]]:
        """Yield block and generation of everything it relies on."""
        for held in self.held:
            yield held.block, held.generation
