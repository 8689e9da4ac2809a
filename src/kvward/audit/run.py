"""Carry out a plan: send its requests by their phases, and record what comes of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from kvward.audit.canary.codebook import Session
from kvward.audit.content_control import run_content_control
from kvward.audit.crowd import run_crowd
from kvward.audit.doors import DoorWatch
from kvward.audit.exchange import Call, Reply
from kvward.audit.flood import Flood
from kvward.audit.history import CONTROL_ARMS, Arm, HistoryFile, Trial
from kvward.audit.load import Load, iter_steps
from kvward.audit.pair_phase import PairPhase
from kvward.audit.pairs import Alter, Pair, iter_pairs
from kvward.audit.placement import Placement
from kvward.audit.plan import CROWD, LOAD_CHANNELS, WARM_UP_CALLS, Plan
from kvward.audit.prompts import Prompt, write_probe_prompt
from kvward.audit.recorder import Progress, Recorder
from kvward.audit.saved import StateCarrier
from kvward.audit.sessions import audit_sessions
from kvward.audit.target import Target
from kvward.errors import ConfigError
from kvward.terms import CacheTier, Channel, ProbeScope


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
        self._flush = flush
        self._target = target
        self._recorder = Recorder(plan, history, on_progress)
        self._placement = Placement(plan)
        add = self._recorder.add
        self._states = StateCarrier(
            plan, target.preset.saved_state, target, add, placement=self._placement
        )
        self._flood = Flood(plan, self._send_flood)
        self._doors = DoorWatch(plan, target.preset.doors, target, add)
        self._pairs = PairPhase(
            lifetime_s=plan.lifetime_s,
            send=self._send_pair,
            change=change,
            between=self._between,
            after=self._flood.look_back,
        )

    async def run(self) -> list[Trial]:
        """Run all planned phases and return every trial in the order in which they ended."""
        if self._plan.has_content:
            await self._run_content()
        given = self._given_pairs
        pairs = list(iter_pairs(self._plan)) if given is None else given
        self._recorder.phase = self._pair_phase
        if self._plan.cache_tier is CacheTier.DEVICE:
            if self._plan.pair_scopes:
                await self._states.open()
            await self._pairs.run(pairs)
            if given is None and self._plan.num_crowd:
                self._recorder.phase = "pictures"
                await run_crowd(self._plan, self._send_crowd)
        else:
            await self._pairs.run_behind(pairs, self._checked_flush(), warm_up=self._warm_up)
        return self._recorder.trials

    async def _run_content(self) -> None:
        sessions = audit_sessions(self._plan)
        self._recorder.phase = "content control"
        await run_content_control(self._plan, sessions, self._send_load)
        self._recorder.phase = "content under load"
        await Load(self._plan, iter_steps(self._plan, sessions), self._send_load).run()
        await self._doors.ask_all()

    @property
    def _pair_phase(self) -> str:
        wanted = {cell.channel for cell in self._plan.cells} - LOAD_CHANNELS
        return " and ".join(channel for channel in Channel if channel in wanted)

    def _checked_flush(self) -> Callable[[], Awaitable[None]]:
        if self._flush is None:
            raise ConfigError(
                f"Nothing empties the device tier, so the {self._plan.cache_tier.value} tier "
                "cannot be told from it.",
                hint="Give --flush-device with a command that restarts or flushes the engine.",
            )
        return self._flush

    async def _warm_up(self) -> None:
        for number in range(WARM_UP_CALLS):
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
                await self._send(call)

    async def _between(self, pair: Pair, hint: str | None) -> None:
        """Do what belongs between priming and probing."""
        await self._states.carry(pair, hint=hint)
        await self._flood.pour(pair)

    async def _send(self, call: Call) -> Reply:
        """Send a call with its tenant's salt, where the auditor gives one."""
        salt = self._plan.salts.get(call.tenant)
        return await self._target.send(call if salt is None else replace(call, salt=salt))

    async def _send_load(self, arm: Arm, session: Session, prompt: Prompt, call: Call) -> Reply:
        reply = await self._send(self._placement.of_prompt(call, prompt))
        self._recorder.record(
            arm, session.tenant, session.conversation, prompt, reply, pair=None, scope=None
        )
        if arm not in CONTROL_ARMS:
            await self._doors.after_output()
        return reply

    async def _send_crowd(self, call: Call, prompt: Prompt) -> None:
        reply = await self._send(self._placement.of_prompt(call, prompt))
        self._recorder.record(
            Arm.CROWD, call.tenant, CROWD, prompt, reply, pair=None, scope=ProbeScope.S7
        )

    async def _send_flood(
        self, arm: Arm, tenant: str, conversation: str, prompt: Prompt, call: Call, pair: Pair
    ) -> Reply:
        reply = await self._send(self._placement.of_pair(call, pair, arm))
        self._recorder.record(arm, tenant, conversation, prompt, reply, pair=pair, scope=pair.scope)
        return reply

    async def _send_pair(
        self, pair: Pair, arm: Arm, which: int, conversation: str, call: Call
    ) -> Reply:
        placed = self._placement.of_pair(call, pair, arm)
        reply = await self._send(self._states.pinned(placed, pair, arm))
        prompt = pair.prompts[which - 1]
        self._recorder.record(
            arm, call.tenant, conversation, prompt, reply, pair=pair, scope=pair.scope
        )
        return reply
