"""Run one audit and write what came of it: used by `audit`, `demo` and the benchmarks."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvward.audit.history import HistoryFile, Trial
from kvward.audit.judge import judge
from kvward.audit.plan import Plan, Sizes, Tier, make_plan
from kvward.audit.report.model import AuditReport, make_report
from kvward.audit.run import AuditRun, Progress
from kvward.audit.target import Target
from kvward.cli.flush import DeviceFlush
from kvward.terms import CacheTier, Channel, SharingLevel

HISTORY_NAME = "history.jsonl"
REPORT_NAME = "report.json"
PAGE_NAME = "report.html"


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """What to audit and how.

    Attributes:
        keys: API key of each tenant. [secret]
        declared_level: The level that the stack promises; None when nobody said.
        cache_tier: Which tier is put to the test.
        flush_command: Empties the device tier; needed for every other one.
    """

    url: str
    keys: Mapping[str, str]
    model: str | None
    tier: Tier
    seed: int
    channels: Sequence[Channel]
    declared_level: SharingLevel | None
    clients: int
    prompt_tokens: int
    sizes: Sizes | None = None
    cache_tier: CacheTier = CacheTier.DEVICE
    flush_command: str | None = None
    title: str = "Audit"
    note: str = ""

    def __repr__(self) -> str:
        """Leave out the keys."""
        return f"<AuditRequest of {self.url}>"


async def run_audit(
    request: AuditRequest,
    *,
    folder: Path,
    on_plan: Callable[[Plan], bool],
    on_progress: Callable[[Progress], None],
) -> tuple[AuditReport, list[Trial]] | None:
    """Reach the target, fix the plan, run it, judge it.

    Args:
        folder: Takes the history.
        on_plan: Called with the plan before its first request; False ends here.
    Returns:
        None when `on_plan` said so.
    """
    target = Target(
        request.url,
        request.keys,
        model=request.model,
        max_connections=4 * request.clients,
    )
    async with target:
        plan = make_plan(
            url=target.url,
            model=target.model,
            tenants=list(request.keys),
            tier=request.tier,
            seed=request.seed,
            channels=request.channels,
            declared_level=request.declared_level,
            clients=request.clients,
            prompt_tokens=request.prompt_tokens,
            sizes=request.sizes,
            run_nonce=secrets.token_hex(8),
            cache_tier=request.cache_tier,
        )
        flush = None
        if request.flush_command is not None:
            flush = DeviceFlush(request.flush_command, target)
        if not on_plan(plan):
            return None
        started, began = int(time.time()), time.perf_counter()
        with HistoryFile(folder / HISTORY_NAME) as history:
            history.write_plan(plan)
            trials = await AuditRun(
                plan, target, history, on_progress=on_progress, flush=flush
            ).run()
            digest = history.digest
        duration = time.perf_counter() - began
    # The rules are heavy arithmetic; the event loop has nothing else to do by now.
    judgement = await asyncio.to_thread(judge, plan, trials, history_digest=digest)
    report = make_report(
        title=request.title,
        note=request.note,
        plan=plan,
        judgement=judgement,
        trials=trials,
        started_unix_s=started,
        duration_s=duration,
    )
    return report, trials
