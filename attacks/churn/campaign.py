"""Runs the load, watches the engine, waits until it is idle, and puts the report together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from attacks.churn.client import ChurnClient
from attacks.churn.judge import Finding, Judge, Kind
from attacks.churn.memory import MemoryWatch, find_trend
from attacks.churn.metrics import EngineState, parse_unverified_metrics
from attacks.churn.plan import Move, Order, Shape, all_sessions, iter_steps
from attacks.churn.prompts import ChurnPrompt
from attacks.churn.report import Report
from kvward.audit.exchange import Ending
from kvward.audit.target import Target
from kvward.errors import TargetError

_PAUSE_AFTER_FAILURE_S = 0.2
_FAILURES_IN_A_ROW = 3  # for each client, until the server counts as gone
_PROGRESS_S = 5.0
_POLL_S = 0.5
_SETTLED_POLLS = 2
_USAGE_OF_NOTHING = 1e-6
_METRICS_TIMEOUT = aiohttp.ClientTimeout(total=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A run.

    Attributes:
        keys: API key of each tenant. [secret]
        requests: The most requests that are sent.
        timeout_s: A request that takes longer hangs.
        idle_within_s: How long after the load the engine may take to be idle.
        allowance_mib: Growth of memory after the warm-up that is still flat.
        stops_early: End the load at the first finding.
    """

    url: str
    keys: Mapping[str, str] = field(repr=False)
    model: str | None
    shape: Shape
    seconds: float
    requests: int
    timeout_s: float
    idle_within_s: float
    engine_pid: int | None
    metrics_url: str | None
    allowance_mib: float
    stops_early: bool


class Campaign:
    """One run against one server.

    Args:
        on_progress: Takes a line for people every few seconds.
    """

    def __init__(self, options: Options, *, on_progress: Callable[[str], None]) -> None:
        self._options = options
        self._on_progress = on_progress
        self._judge = Judge(all_sessions(options.shape))
        self._watch: MemoryWatch | None = None
        self._sent = 0
        self._failures_in_a_row = 0
        self._deadline = 0.0
        self._client: ChurnClient

    async def run(self) -> Report:
        """Run it.

        Raises:
            TargetUnreachableError, TargetRefusedError: before the load.
            psutil.Error: there is no process with the engine's id.
        """
        options = self._options
        model = await self._open_target()
        if options.engine_pid is not None:
            self._watch = MemoryWatch(options.engine_pid)
        before = await self._read_metrics()
        began = time.monotonic()
        async with ChurnClient(
            options.url, options.keys, model=model, timeout_s=options.timeout_s
        ) as self._client:
            await self._run_load(began)
            duration_s = time.monotonic() - began
            alive = await self._check_alive()
            after = await self._wait_until_idle() if alive else None
        report = Report(
            counts=self._judge.counts,
            errors=self._judge.errors,
            kinds=self._judge.kinds,
            findings=self._judge.findings,
            largest_difference_ratio=self._judge.largest_difference_ratio,
            tenants=options.shape.tenants,
            duration_s=duration_s,
            wants_memory=options.engine_pid is not None,
            wants_metrics=options.metrics_url is not None,
            trend=None if self._watch is None else find_trend(self._watch.samples),
            allowance_mib=options.allowance_mib,
            before=before,
            after=after,
        )
        self._judge_engine(report)
        return report

    async def _open_target(self) -> str:
        """Check that every tenant is let in, and return the model's name."""
        options = self._options
        async with Target(
            options.url, options.keys, model=options.model, max_connections=4, timeout_s=30.0
        ) as target:
            return target.model

    async def _run_load(self, began: float) -> None:
        self._deadline = began + self._options.seconds
        beside = [asyncio.create_task(self._tell_progress(began))]
        if self._watch is not None:
            beside.append(asyncio.create_task(self._watch.run()))
        try:
            async with asyncio.TaskGroup() as group:
                for client in range(self._options.shape.clients):
                    group.create_task(self._run_client(client))
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _run_client(self, client: int) -> None:
        for step in iter_steps(self._options.shape, client):
            if self._is_over:
                return
            if step.together:
                await asyncio.gather(*(self._send(order) for order in step.orders))
            else:
                for order in step.orders:
                    await self._send(order)

    @property
    def _is_over(self) -> bool:
        gone = self._failures_in_a_row >= _FAILURES_IN_A_ROW * self._options.shape.clients
        dead = self._watch is not None and not self._watch.is_alive
        return (
            gone
            or dead
            or (self._options.stops_early and bool(self._judge.kinds))
            or self._sent >= self._options.requests
            or time.monotonic() >= self._deadline
        )

    async def _send(self, order: Order) -> None:
        if self._sent >= self._options.requests:
            return
        number = self._sent
        self._sent += 1
        reply = await self._client.send(order)
        self._judge.take(number, order, reply)
        if reply.ending is Ending.FAILED:
            self._failures_in_a_row += 1
            await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
        elif reply.ending is Ending.DONE:
            self._failures_in_a_row = 0

    async def _tell_progress(self, began: float) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            counts, found = self._judge.counts, self._judge.kinds.total()
            self._on_progress(
                f"{time.monotonic() - began:.0f} of {self._options.seconds:.0f} s: "
                f"{counts['answered']} answered, {counts['cancelled']} cancelled, "
                f"{counts['failed']} failed, {found} found"
            )

    async def _check_alive(self) -> bool:
        if self._watch is not None and not self._watch.is_alive:
            self._judge.blame(Finding(kind=Kind.ENGINE_DIED, detail="its process is gone"))
            return False
        try:
            await self._open_target()
        except TargetError as exc:
            self._judge.blame(
                Finding(kind=Kind.ENGINE_DIED, detail=f"after the load it does not answer: {exc}")
            )
            return False
        return True

    async def _wait_until_idle(self) -> EngineState | None:
        """Return the engine's state once it is idle twice in a row, or when that took too long."""
        deadline = time.monotonic() + self._options.idle_within_s
        settled = 0
        while True:
            state = await self._read_metrics()
            settled = settled + 1 if state is not None and state.is_idle else 0
            if settled >= _SETTLED_POLLS or state is None or time.monotonic() >= deadline:
                return state
            # An engine may renew its gauges only as it works: after a cancel they would stay.
            await self._client.send(self._nudge())
            await asyncio.sleep(_POLL_S)

    def _nudge(self) -> Order:
        session = all_sessions(self._options.shape)[0]
        prompt = ChurnPrompt(words=session.voice[:1], ranking=session.voice)
        return Order(move=Move.FRESH, session=session, prompt=prompt, max_tokens=1, streams=False)

    async def _read_metrics(self) -> EngineState | None:
        if self._options.metrics_url is None:
            return None
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
            async with (
                aiohttp.ClientSession(timeout=_METRICS_TIMEOUT) as session,
                session.get(self._options.metrics_url) as response,
            ):
                if response.status == 200:
                    return parse_unverified_metrics(await response.read())
        return None

    def _judge_engine(self, report: Report) -> None:
        """Judge memory, and what is held after the load."""
        trend, after = report.trend, report.after
        if trend is not None and trend.growth_mib > self._options.allowance_mib:
            detail = f"by {trend.growth_mib:.1f} MiB after the warm-up"
            self._judge.blame(Finding(kind=Kind.MEMORY_GREW, detail=detail))
        if after is None:
            return
        if (after.kv_usage_ratio or 0.0) > _USAGE_OF_NOTHING:
            detail = f"{after.kv_usage_ratio:.4%} of the KV pool is held by nobody's request"
            self._judge.blame(Finding(kind=Kind.BLOCKS_LEAKED, detail=detail))
        if after.running or after.waiting:
            detail = f"{after.running} requests run and {after.waiting} wait, and nobody asks"
            self._judge.blame(Finding(kind=Kind.BLOCKS_LEAKED, detail=detail))
