"""Carry out a plan: send its requests, write the history, say how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kvward.audit.canary.codebook import Session
from kvward.audit.canary.words import CODE_WORDS
from kvward.audit.doors import DoorWatch
from kvward.audit.elicitation import TEXT_TOKENS, as_lines
from kvward.audit.exchange import Call, Reply
from kvward.audit.flood import Flood
from kvward.audit.history import Arm, HistoryFile, Redactor, Trial
from kvward.audit.load import Load, iter_steps, logprobs_of
from kvward.audit.pairs import Alter, Change, Pair, iter_pairs, prime_pair, probe_pair, run_pair
from kvward.audit.pictures import draw_image
from kvward.audit.placement import Placement
from kvward.audit.plan import (
    BLOCK_TOKENS,
    CROWD,
    LOAD_CHANNELS,
    WARM_UP_CALLS,
    Elicitation,
    Plan,
)
from kvward.audit.prompts import (
    Prompt,
    derive_random,
    write_canary_prompt,
    write_probe_prompt,
)
from kvward.audit.saved import StateCarrier
from kvward.audit.sessions import audit_sessions
from kvward.audit.target import Target
from kvward.errors import ConfigError
from kvward.terms import CacheTier, Channel, ProbeScope

_CONTROL_WORDS = 12 * 16
_CONTROL_CLIENTS = 4
_CONTROLS = frozenset({Arm.CONTROL_WRITE, Arm.CONTROL_READ})
_BY_THE_OPERATOR = frozenset({Change.ERASE, Change.RELOAD})
_FIRST_CONTROL_NONCE = 1_000_000_000  # apart from the nonces of the load


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is: requests done of requests planned, and what it is doing."""

    done: int
    planned: int
    phase: str


class AuditRun:
    """One run of a plan against an open target.

    Args:
        history: Already holds the plan; every trial is written to it as it ends, so that an
            interrupted run leaves what it saw.
        on_progress: Called after every request; must not block.
        change: Makes what a pair needs to have changed between its priming and its probes.
        flush: Empties the device tier, and returns when the target answers again. Only for plans
            of another tier.
        pairs: Run instead of the plan's own, as many for each of its scopes.
    """

    def __init__(
        self,
        plan: Plan,
        target: Target,
        history: HistoryFile,
        *,
        on_progress: Callable[[Progress], None],
        change: Alter,
        flush: Callable[[], Awaitable[None]] | None = None,
        pairs: Sequence[Pair] | None = None,
    ) -> None:
        self._plan = plan
        self._given_pairs = pairs
        self._change = change
        self._flush = flush
        self._target = target
        self._history = history
        self._on_progress = on_progress
        self._redactor = Redactor(CODE_WORDS)
        self._sessions = audit_sessions(plan)
        self._placement = Placement(plan)
        self._states = StateCarrier(
            plan, target.preset.saved_state, target, self._add, placement=self._placement
        )
        self._flood = Flood(plan, self._send_flood)
        self._doors = DoorWatch(plan, target.preset.doors, target, self._add)
        self._phase = "starting"
        self._done = 0
        self.trials: list[Trial] = []

    async def run(self) -> list[Trial]:
        """Run all planned phases and return every trial in the order in which they ended."""
        if self._plan.has_content:
            self._phase = "content control"
            await self._run_controls()
            self._phase = "content under load"
            await Load(self._plan, iter_steps(self._plan, self._sessions), self._send_load).run()
            await self._doors.ask_all()
        if self._plan.cache_tier is CacheTier.DEVICE:
            self._phase = self._pair_phase
            if self._plan.pair_scopes:
                await self._states.open()
            pairs = list(self._pairs())
            for pair in pairs:
                if pair.change is not Change.EXPIRE:
                    await run_pair(
                        pair,
                        self._send_pair,
                        change=self._change,
                        between=self._between,
                        after=self._flood.look_back,
                    )
            await self._run_expiring([pair for pair in pairs if pair.change is Change.EXPIRE])
            if self._given_pairs is None and self._plan.num_crowd:
                self._phase = "pictures"
                await self._run_crowd()
        else:
            await self._run_behind_flush()
        return self.trials

    @property
    def _pair_phase(self) -> str:
        wanted = {cell.channel for cell in self._plan.cells} - LOAD_CHANNELS
        return " and ".join(channel for channel in Channel if channel in wanted)

    def _pairs(self) -> Iterable[Pair]:
        return iter_pairs(self._plan) if self._given_pairs is None else self._given_pairs

    async def _run_behind_flush(self) -> None:
        """Prime everything, empty the device, probe everything: what is found was elsewhere."""
        if self._flush is None:
            raise ConfigError(
                f"Nothing empties the device tier, so the {self._plan.cache_tier.value} tier "
                "cannot be told from it.",
                hint="Give --flush-device with a command that restarts or flushes the engine.",
            )
        pairs = list(self._pairs())
        # A change may reach further than one pair, so whatever has to stay comes after it.
        changed = [pair for pair in pairs if pair.change in _BY_THE_OPERATOR]
        for batch in (changed, [pair for pair in pairs if pair not in changed]):
            if batch:
                await self._run_batch(batch, self._flush)

    async def _run_batch(self, pairs: Sequence[Pair], flush: Callable[[], Awaitable[None]]) -> None:
        """Prime pairs, move them out of the device, make their changes there, probe them."""
        self._phase = "priming"
        hints = {
            (pair.scope, pair.number): await prime_pair(pair, self._send_pair) for pair in pairs
        }
        await flush()
        for pair in pairs:
            if pair.change in _BY_THE_OPERATOR:
                await self._change(pair)
        for number in range(WARM_UP_CALLS):
            # An engine's first answers are slow whatever it finds; they are not measured.
            prompt = write_probe_prompt(
                self._plan.seed,
                num_words=self._plan.prompt_tokens,
                nonce=f"{self._plan.run_nonce}:warm-up:{number}",
            )
            warming = Call(
                tenant=self._plan.tenants[0],
                prompt=prompt.text,
                max_tokens=1,
                conversation=f"warm-up-{number}",
            )
            for call in self._placement.everywhere(warming):
                await self._target.send(self._sign(call))
        primed_at = time.monotonic()
        self._phase = self._pair_phase
        # State past its lifetime is looked for last, or what has to be there would be past it too.
        for pair in sorted(pairs, key=lambda pair: pair.change is Change.EXPIRE):
            if pair.change is Change.EXPIRE:
                await self._wait_out_lifetime(primed_at)
            await probe_pair(pair, self._send_pair, hint=hints[pair.scope, pair.number])

    async def _run_expiring(self, pairs: Sequence[Pair]) -> None:
        """Prime all pairs, wait once until their state is past its lifetime, probe them."""
        hints = [await prime_pair(pair, self._send_pair, change=self._change) for pair in pairs]
        primed_at = time.monotonic()
        for pair, hint in zip(pairs, hints, strict=True):
            await self._wait_out_lifetime(primed_at)
            await probe_pair(pair, self._send_pair, hint=hint)

    async def _wait_out_lifetime(self, primed_at: float) -> None:
        """Return when all that was primed by a time of the monotonic clock is past its lifetime."""
        await asyncio.sleep(max(0.0, primed_at + self._plan.lifetime_s - time.monotonic()))

    async def _run_crowd(self) -> None:
        """Send one text with a fresh picture before it, many times, as one tenant.

        No picture was sent before, so nothing may be reused; what is short in the name of one
        shows where two of them meet.
        """
        plan = self._plan
        prompt = write_probe_prompt(
            plan.seed, num_words=2 * BLOCK_TOKENS, nonce=f"{plan.run_nonce}:{CROWD}"
        )
        numbers = iter(range(plan.num_crowd))

        async def client() -> None:
            for number in numbers:
                random = derive_random(plan.seed, CROWD, plan.run_nonce, number)
                call = Call(
                    tenant=plan.tenants[0],
                    prompt=prompt.text,
                    max_tokens=1,
                    conversation=CROWD,
                    image=draw_image(random),
                )
                placed = self._placement.of_prompt(call, prompt)
                reply = await self._target.send(self._sign(placed))
                self._record(
                    Arm.CROWD, call.tenant, CROWD, prompt, reply, pair=None, scope=ProbeScope.S7
                )

        async with asyncio.TaskGroup() as group:
            for _ in range(plan.clients):
                group.create_task(client())

    def _sign(self, call: Call) -> Call:
        """Return a call with its tenant's salt, where the auditor gives one."""
        salt = self._plan.salts.get(call.tenant)
        return call if salt is None else replace(call, salt=salt)

    async def _run_controls(self) -> None:
        """Send own canaries twice, so that the second answer reads them from the cache."""
        numbers = iter(range(self._plan.sizes.control_outputs))

        async def client() -> None:
            for number in numbers:
                session = self._sessions[number % len(self._sessions)]
                prompt, max_tokens = self._control_prompt(session, number)
                for arm in (Arm.CONTROL_WRITE, Arm.CONTROL_READ):
                    call = Call(
                        tenant=session.tenant,
                        prompt=prompt.text,
                        max_tokens=max_tokens,
                        conversation=session.conversation,
                        logprobs=logprobs_of(self._plan),
                    )
                    await self._send_load(arm, session, prompt, call)

        async with asyncio.TaskGroup() as group:
            for _ in range(_CONTROL_CLIENTS):
                group.create_task(client())

    def _control_prompt(self, session: Session, number: int) -> tuple[Prompt, int]:
        """Return what holds a session's canary, and how many tokens of an answer show it."""
        seed, nonce = self._plan.seed, _FIRST_CONTROL_NONCE + number
        if self._plan.elicitation is Elicitation.TEXT:
            lines = as_lines(
                seed,
                session,
                of_canary=True,
                prefix_words=0,
                num_words=_CONTROL_WORDS,
                nonce=nonce,
            )
            return lines, TEXT_TOKENS
        return write_canary_prompt(seed, session, num_words=_CONTROL_WORDS, nonce=nonce), 1

    async def _send_load(self, arm: Arm, session: Session, prompt: Prompt, call: Call) -> Reply:
        reply = await self._target.send(self._sign(self._placement.of_prompt(call, prompt)))
        self._record(
            arm, session.tenant, session.conversation, prompt, reply, pair=None, scope=None
        )
        if arm not in _CONTROLS:
            await self._doors.after_output()
        return reply

    async def _between(self, pair: Pair, hint: str | None) -> None:
        """Do what belongs between priming and probing."""
        await self._states.carry(pair, hint=hint)
        await self._flood.pour(pair)

    async def _send_flood(
        self, arm: Arm, tenant: str, conversation: str, prompt: Prompt, call: Call, pair: Pair
    ) -> Reply:
        reply = await self._target.send(self._sign(self._placement.of_pair(call, pair, arm)))
        self._record(arm, tenant, conversation, prompt, reply, pair=pair, scope=pair.scope)
        return reply

    async def _send_pair(
        self, pair: Pair, arm: Arm, which: int, conversation: str, call: Call
    ) -> Reply:
        placed = self._sign(self._placement.of_pair(call, pair, arm))
        reply = await self._target.send(self._states.pinned(placed, pair, arm))
        prompt = pair.prompts[which - 1]
        self._record(arm, call.tenant, conversation, prompt, reply, pair=pair, scope=pair.scope)
        return reply

    def _record(
        self,
        arm: Arm,
        tenant: str,
        conversation: str,
        prompt: Prompt,
        reply: Reply,
        *,
        pair: Pair | None,
        scope: ProbeScope | None,
    ) -> None:
        first = None
        if pair is not None and arm in {Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED}:
            first = (arm is Arm.PROBE_PRIMED) == (pair.first == pair.coin)
        trial = Trial(
            number=0,
            arm=arm,
            tenant=tenant,
            conversation=conversation,
            scope=scope,
            pair=None if pair is None else pair.number,
            coin=None if pair is None else pair.coin,
            first=first,
            prompt=prompt.recipe,
            prompt_words=len(prompt.words),
            own_words=() if scope is not None else tuple(sorted(prompt.own_words)),
            ending=reply.ending,
            status=reply.status,
            start_ns=reply.start_ns,
            ttft_ns=reply.ttft_ns,
            total_ns=reply.total_ns,
            text=self._redactor.text(reply.text),
            top_logprobs=self._redactor.top_logprobs(reply),
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cached_tokens=reply.cached_tokens,
            matched_tokens=reply.matched_tokens,
            cache_hit=reply.cache_hit,
            response_ids=reply.response_ids,
            error=reply.error,
            created_tokens=reply.created_tokens,
            route=reply.route,
            replica=reply.replica if len(self._plan.replicas) > 1 else None,
            num_retries=reply.num_retries,
            finish_reason=reply.finish_reason,
            model=reply.model,
            output_digest=reply.output_digest,
        )
        self._add(trial)

    def _add(self, trial: Trial) -> None:
        """Number a trial, write it down, and say how far the run is."""
        trial = replace(trial, number=len(self.trials))
        self.trials.append(trial)
        self._history.write(trial)
        self._done += 1
        planned = max(self._plan.num_requests, self._done)
        self._on_progress(Progress(done=self._done, planned=planned, phase=self._phase))
