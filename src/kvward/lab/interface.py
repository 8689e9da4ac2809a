"""What the lab's server, scheduler and model say to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvward.lab.media import Picture

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """The Llama architecture, as far as a forward pass needs it.

    `num_heads` is a multiple of `num_kv_heads` (grouped-query attention);
    `num_heads * head_dim` need not equal `hidden`.
    """

    vocab: int
    hidden: int
    intermediate: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope_theta: float
    max_context_tokens: int
    tie_embeddings: bool
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Matrices are stored (in_features, out_features), float32, C order."""

    attention_norm: FloatArray  # (hidden,)
    wq: FloatArray  # (hidden, num_heads * head_dim)
    wk: FloatArray  # (hidden, num_kv_heads * head_dim)
    wv: FloatArray  # (hidden, num_kv_heads * head_dim)
    wo: FloatArray  # (num_heads * head_dim, hidden)
    mlp_norm: FloatArray  # (hidden,)
    w_gate: FloatArray  # (hidden, intermediate)
    w_up: FloatArray  # (hidden, intermediate)
    w_down: FloatArray  # (intermediate, hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaWeights:
    """A whole checkpoint in float32. `head` is (hidden, vocab)."""

    embedding: FloatArray  # (vocab, hidden)
    layers: tuple[LayerWeights, ...]
    final_norm: FloatArray  # (hidden,)
    head: FloatArray  # (hidden, vocab)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. Greedy when `temperature` is 0."""

    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    top_logprobs: int | None = None  # None: no logprobs; 0: the chosen token's only; at most 20
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt to continue. `cache_salt` is the engine's only notion of a scope.

    `owner_tag` says whose the salt is; without one nothing is kept outside the engine.
    At the places of `pictures` the prompt holds placeholders.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str | None
    owner_tag: str | None = None
    adapter: str | None = None
    pictures: tuple[Picture, ...] = ()
    slot_id: int | None = None  # None: the engine chooses, where it has slots


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One generated token, or the end of a request.

    `token_id` is None only for CANCELLED and ERROR. `top_logprobs` are natural-log
    probabilities of the raw distribution, before `logit_bias` and temperature, most
    likely first. `cached_tokens` is the number of prompt tokens whose KV was reused.
    The event with a `finish_reason` is the last one of its request.

    Behind a router, `replica` is where the event comes from, and `routed_tokens` the number of
    prompt tokens that had been sent there before.
    """

    request_id: str
    token_id: int | None
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...] | None
    cached_tokens: int
    finish_reason: FinishReason | None
    error: str | None = None
    replica: int | None = None
    routed_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Sizes of the engine. Tokens and blocks, never bytes."""

    block_tokens: int = 16
    num_blocks: int = 256
    max_running_requests: int = 32
    max_batch_tokens: int = 256  # per step; longer prompts are prefilled in chunks
    prefix_cache: bool = True
    host_blocks: int = 0  # 0: no offload tier
    host_steps: int = 0  # steps until a block from the host tier has come; 0: at once
    num_slots: int = 0  # 0: no slots
    draft_tokens: int = 0  # guessed ahead in a step, at most; 0: no drafts
    scope_quota_blocks: int | None = None  # kept for a scope without a holder; None: no limit
    host_fault_rate: float = 0.0  # of the host tier's writes and reads, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """What may be told of a slot: its number, and the tokens of the request that was there."""

    slot_id: int
    tokens: tuple[int, ...]


class Engine(Protocol):
    """A running engine. Every method may be called from any thread."""

    def start(self) -> None:
        """Start the engine's own thread."""

    def submit(self, request: GenerationRequest, on_event: Callable[[TokenEvent], None]) -> None:
        """Queue a request; `on_event` is called from the engine's thread and must not block.

        Raises:
            UsageError: the prompt is empty, holds an unknown token id, or does not fit
                into the context or the block pool together with one new token.
        """

    def cancel(self, request_id: str) -> None:
        """Stop a request; unknown or finished ids are ignored."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the names of the adapters that are loaded."""

    def load_adapter(self, name: str, *, seed: int) -> None:
        """Load an adapter between two steps, in place of one of the same name."""

    def load_base(self, *, seed: int) -> None:
        """Load other weights in place of the base's between two steps."""

    def erase(self, cache_salt: str | None) -> int:
        """Forget all state that was computed under a salt until now.

        What still runs under it goes on and leaves nothing behind.

        Returns:
            How many blocks that were, in all tiers.
        """

    def slots(self, cache_salt: str | None) -> list[SlotView]:
        """Return the slots whose last request ran under a salt; empty without slots."""

    def save_slot(self, slot_id: int, cache_salt: str | None) -> bytes | None:
        """Return the state in a slot as bytes; None when there is none of this salt.

        Raises:
            UsageError: there is no such slot.
        """

    def restore_slot(self, slot_id: int, cache_salt: str | None, state: bytes) -> int:
        """Put a saved state into a slot; returns how many blocks it has.

        Raises:
            UsageError: there is no such slot, or the state is not one this salt saved here.
        """

    def stats(self) -> dict[str, int]:
        """Return counters: tokens computed and drafted, hits, evictions, preemptions, refusals."""

    def stop(self) -> None:
        """Stop the thread; every request still open gets an ERROR event."""


class DurableBlocks(Protocol):
    """What one scope has outside the engine's memory. Neither method raises."""

    def load(self, names: Sequence[bytes]) -> list[FloatArray | None]:
        """Return the content of each block, flat in the order of the pages, None for a miss.

        Args:
            names: Hashes of whole prefixes, without a scope: that is bound already.
        """

    def save(self, name: bytes, content: FloatArray) -> None:
        """Keep a copy of a block's content, (layers, 2, block_tokens, kv_heads, head_dim)."""


class Ward(Protocol):
    """Isolation inside the engine: who may read which block of memory. Not thread-safe.

    The scheduler reports what it does with blocks and asks before it reads; a refusal makes
    it recompute. A ward trusts neither the allocator nor the prefix index.
    """

    def admit(self, cache_salt: str | None) -> str:
        """Return the scope to run a request under.

        A salt that is not an authentic scope token gives a fresh random scope, so that
        nothing is reused, and is counted.
        """

    def durable(self, cache_salt: str | None, owner_tag: str | None) -> DurableBlocks | None:
        """Return what the scope has outside the engine; None when nothing is kept for it."""

    def grant(self, block_id: int, *, scope: str) -> int:
        """Lease a block to a scope for writing; returns its generation. Ends earlier leases."""

    def commit(self, block_id: int, *, generation: int, name: bytes) -> bool:
        """Say that all layers are written, and with what. False when the lease has ended.

        Args:
            name: Hash of the block's whole prefix.
        """

    def may_reuse(self, block_id: int, *, scope: str, name: bytes) -> int | None:
        """Return the generation to read under, or None (counted) when reuse is refused."""

    def written_for(self, block_id: int, *, name: bytes) -> str | None:
        """Return the scope for which a block holds the content `name`, None if it does not.

        What leaves for another tier goes under this name, or not at all.
        """

    def may_restore(self, owner: str | None, *, scope: str) -> bool:
        """Tell whether content that left under `owner` may come back for `scope`; counts a no."""

    def still_holds(
        self, block_ids: Sequence[int], generations: Sequence[int], *, scope: str
    ) -> bool:
        """Tell whether all leases a running request relies on are in force; counts a refusal."""
