"""Continuous batching: which tokens of which requests the next step computes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.decoder import Decoder
from kvward.lab.draft import Drafter
from kvward.lab.intake import Intake
from kvward.lab.interface import (
    EngineOptions,
    FinishReason,
    FloatArray,
    GenerationRequest,
    LlamaConfig,
    LlamaWeights,
    TokenEvent,
    Ward,
)
from kvward.lab.memory import BlockMemory
from kvward.lab.model import Segment, forward
from kvward.lab.sequence import Sequence
from kvward.lab.slots import SlotShelf
from kvward.lab.variants import Variants


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Tokens of a request that a step computes.

    Attributes:
        num_tokens: That it has, from the first one that is not computed.
        drafts: Guessed to come after them.
    """

    sequence: Sequence
    num_tokens: int
    drafts: tuple[int, ...] = ()


class Scheduler:
    """Runs requests step by step. Not thread-safe: the engine's thread owns it."""

    def __init__(
        self,
        weights: LlamaWeights,
        config: LlamaConfig,
        options: EngineOptions,
        *,
        behaviour: Behaviour,
        ward: Ward | None,
        manifest_digest: bytes,
        variants: Variants | None = None,
    ) -> None:
        self._config = config
        self._options = options
        self._behaviour = behaviour
        self.stats: Counter[str] = Counter()
        self._memory = BlockMemory(
            config,
            options,
            behaviour,
            ward=ward,
            stats=self.stats,
        )
        self._intake = Intake(
            config,
            options,
            behaviour,
            ward=ward,
            variants=variants or Variants(weights, manifest_digest=manifest_digest),
            slots=self._memory.slots,
        )
        self._decoder = Decoder(
            config, max_tokens=self._intake.max_tokens, behaviour=behaviour, stats=self.stats
        )
        self._drafter = Drafter(
            num_lanes=options.max_running_requests,
            num_tokens=options.draft_tokens,
            behaviour=behaviour,
        )
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # oldest first

    @property
    def has_work(self) -> bool:
        """Tell whether any request is open."""
        return bool(self._waiting or self._running) or self._memory.is_transferring

    @property
    def num_available_blocks(self) -> int:
        """Return how many blocks no request holds."""
        return self._memory.num_available

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that can never run.

        Raises:
            UsageError: for what `Intake.check` says.
        """
        self._intake.check(request)

    def submit(self, request: GenerationRequest, on_event: Callable[[TokenEvent], None]) -> None:
        """Queue a request that `check` has let through."""
        self._waiting.append(self._intake.open(request, on_event))

    def cancel(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""
        for sequence in (*self._waiting, *self._running):
            if sequence.request.request_id == request_id:
                self.stats["cancelled_requests"] += 1
                self._end(sequence, FinishReason.CANCELLED)
                return

    def erase(self, cache_salt: str | None) -> int:
        """Forget all state of a salt; returns how many blocks that were."""
        running = [
            sequence
            for sequence in (*self._waiting, *self._running)
            if sequence.request.cache_salt == cache_salt
        ]
        scope = self.scope_of(cache_salt)
        num_blocks = self._memory.erase(scope, running)
        self._drafter.erase(scope)
        return num_blocks

    def slots(self) -> SlotShelf:
        """Return the slots."""
        return self._memory.slots

    def scope_of(self, cache_salt: str | None) -> str | None:
        """Return the scope that a salt stands for."""
        return self._intake.scope_of(cache_salt)

    def fail_all(self, message: str) -> None:
        """End every request with an error."""
        for sequence in (*self._running, *self._waiting):
            self._end(sequence, FinishReason.ERROR, error=message)

    def step(self) -> None:
        """Compute one batch and deliver what came of it."""
        self._memory.begin_step()
        self._admit_waiting()
        self._make_room()
        work = self._plan_batch()
        if work:
            self._compute(work)
        self._memory.end_step()

    def _compute(self, work: list[_Work]) -> None:
        segments = [self._segment(w, work) for w in work]
        logits = self._run_segments(work, segments)
        for w, rows in zip(work, logits, strict=True):
            self._advance(w, rows, has_company=len(work) > 1)

    def _segment(self, of: _Work, work: list[_Work]) -> Segment:
        begin = of.sequence.num_computed
        seen = of.sequence.seen_tokens(begin, begin + of.num_tokens)
        return Segment(
            token_ids=np.asarray([*seen, *of.drafts], np.intp),
            start=begin,
            block_table=self._memory.block_table(of.sequence),
            read_table=self._wrong_read_table(of, work),
            num_logits=1 + len(of.drafts),
        )

    def _run_segments(self, work: list[_Work], segments: list[Segment]) -> list[FloatArray]:
        """Return the logits of each piece of work; what runs on the same weights together."""
        on_weights: dict[int, list[int]] = {}
        for number, w in enumerate(work):
            on_weights.setdefault(id(w.sequence.variant.weights), []).append(number)
        logits: dict[int, FloatArray] = {}
        for numbers in on_weights.values():
            together = [segments[number] for number in numbers]
            rows = forward(
                work[numbers[0]].sequence.variant.weights,
                self._config,
                self._memory.pages,
                together,
            )
            ends = np.cumsum([segment.num_logits for segment in together])
            logits.update(zip(numbers, np.split(rows, ends[:-1]), strict=True))
        return [logits[number] for number in range(len(work))]

    def _admit_waiting(self) -> None:
        while self._waiting and len(self._running) < self._options.max_running_requests:
            if not self._memory.admit(self._waiting[0], headroom=len(self._running)):
                return
            sequence = self._waiting.popleft()
            self._drafter.take_lane(sequence)
            self._running.append(sequence)

    def _make_room(self) -> None:
        """Give every running request the block its next token needs, taking from the youngest."""
        for sequence in tuple(self._running):
            while sequence in self._running and self._memory.needs_block(sequence):
                if not self._memory.grow(sequence):
                    self.stats["preemptions"] += 1
                    self._restart(self._running[-1])

    def _restart(self, sequence: Sequence) -> None:
        """Take a request's blocks and compute it again later, generated tokens included."""
        self._running.remove(sequence)
        self._drafter.leave_lane(sequence)
        self._memory.release(sequence)
        self._waiting.appendleft(sequence)

    def _plan_batch(self) -> list[_Work]:
        # Youngest first, so that the oldest of them waits in front.
        for sequence in reversed(self._running.copy()):
            if not self._memory.still_holds(sequence):
                self.stats["refused_reads"] += 1
                self._restart(sequence)
        budget = self._options.max_batch_tokens
        spare = budget - len(self._running)  # for drafts: everybody's next token goes first
        work = []
        # One token each for those that generate, then chunks of prompts.
        for sequence in sorted(self._running, key=lambda s: s.num_waiting > 1):
            if sequence.num_loading and not self._slips(Slip.READ_BEFORE_READY, sequence):
                continue
            num_tokens = min(sequence.num_waiting, budget)
            if num_tokens > 0:
                drafts = self._drafts(sequence, at_most=spare)
                work.append(_Work(sequence=sequence, num_tokens=num_tokens, drafts=drafts))
                budget -= num_tokens + len(drafts)
                spare -= len(drafts)
        return work

    def _drafts(self, sequence: Sequence, *, at_most: int) -> tuple[int, ...]:
        """Return drafts for a request that has begun to answer, as many as its blocks can hold."""
        if sequence.num_waiting > 1 or not sequence.num_generated:
            return ()
        room = len(sequence.held) * self._options.block_tokens - len(sequence.tokens)
        at_most = min(at_most, room, self._decoder.num_draftable(sequence))
        return self._drafter.propose(sequence, at_most=at_most)

    def _slips(self, slip: Slip, sequence: Sequence) -> bool:
        """Tell whether it goes wrong for a request; that is decided once."""
        return self._behaviour.slips_once(slip, sequence.slips)

    def _wrong_read_table(self, of: _Work, work: list[_Work]) -> NDArray[np.intp] | None:
        """Return a block table with one block of a neighbour in it; None in the sound engine."""
        sequence = of.sequence
        if not self._behaviour.has(Slip.TABLE_ROW_MIXED) or sequence.num_generated:
            return None
        if of.num_tokens < sequence.num_waiting:
            return None  # not the step of its first token
        neighbours = [w.sequence for w in work if w.sequence is not sequence]
        if not neighbours or not self._slips(Slip.TABLE_ROW_MIXED, sequence):
            return None
        other = neighbours[self._behaviour.pick(Slip.TABLE_ROW_MIXED, len(neighbours))]
        table = self._memory.block_table(sequence).copy()
        row = self._memory.block_table(other)
        at = self._behaviour.pick(Slip.TABLE_ROW_MIXED, min(len(table), len(row)))
        table[at] = row[at]
        return table

    def _advance(self, work: _Work, logits: FloatArray, *, has_company: bool) -> None:
        sequence = work.sequence
        kind = "decode_tokens" if sequence.num_generated > 0 else "prefill_tokens"
        self.stats[kind] += work.num_tokens
        sequence.num_computed += work.num_tokens
        if sequence.num_waiting > 0:
            self._memory.publish(sequence)
            return
        events = self._decoder.decode(
            sequence,
            logits,
            work.drafts,
            trusts_drafts=self._drafter.trusts(sequence, has_company=has_company),
        )
        self._memory.publish(sequence)
        self._drafter.learn(sequence, sequence.tokens[-len(events) :])
        if events[-1].finish_reason is not None:
            self._memory.save_slot(sequence)
            self._leave(sequence)
        for event in events:
            self._deliver(sequence, event)

    def _deliver(self, sequence: Sequence, event: TokenEvent) -> None:
        try:
            sequence.on_event(event)
        except Exception:  # noqa: BLE001 - a broken listener must not end anybody else's request
            self.stats["broken_listeners"] += 1

    def _leave(self, sequence: Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._drafter.leave_lane(sequence)
        self._memory.release(sequence)

    def _end(self, sequence: Sequence, reason: FinishReason, *, error: str | None = None) -> None:
        self._leave(sequence)
        self._deliver(
            sequence,
            TokenEvent(
                request_id=sequence.request.request_id,
                token_id=None,
                logprob=None,
                top_logprobs=None,
                cached_tokens=sequence.cached_tokens or 0,
                finish_reason=reason,
                error=error,
            ),
        )
