"""How fast the auditor reads, and how fast it judges.

Requests per second with 16 clients against the lab, through the gateway and without, both processes
on this machine; the bar is 100 outputs a second against the bare lab. The second figure replays a
history through the judge alone, with a bar of 2,000 outputs a second.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, publish
from kvward.audit.history import load_history
from kvward.audit.judge import judge
from kvward.audit.plan import Sizes, Tier
from kvward.cli.auditing import HISTORY_NAME, AuditRequest, run_audit
from kvward.cli.process import ServerProcess
from kvward.terms import Channel
from soak_audit import prepare

SIZES = Sizes(content_outputs=1500, control_outputs=40, pairs=1)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys, policy = prepare(folder)
        bare = outputs_per_s(["lab", "serve"], keys, folder)
        edge = outputs_per_s(["serve", "--config", str(policy), "--edge-only"], keys, folder)
        warded = outputs_per_s(["serve", "--config", str(policy)], keys, folder)
        plan, trials = load_history(folder / HISTORY_NAME)
        began = time.perf_counter()
        judge(plan, trials, history_digest="")
        judged = len(trials) / (time.perf_counter() - began)
    return publish(
        "audit",
        [
            Figure(name="outputs, bare lab, 16 clients", value=bare, unit="outputs/s", bar=100),
            Figure(name="outputs, behind the gateway", value=edge, unit="outputs/s", baseline=bare),
            Figure(name="outputs, gateway and ward", value=warded, unit="outputs/s", baseline=bare),
            Figure(name="judge alone, replayed", value=judged, unit="outputs/s", bar=2000),
        ],
    )


def outputs_per_s(arguments: list[str], keys: dict[str, str], folder: Path) -> float:
    with ServerProcess(arguments, log=folder / "log") as server:
        request = AuditRequest(
            url=server.url,
            keys=keys,
            model=None,
            tier=Tier.SMOKE,
            seed=1,
            channels=[Channel.CONTENT],
            declared_level=None,
            clients=16,
            prompt_tokens=512,
            sizes=SIZES,
        )
        report, trials = asyncio.run(run_audit(request, folder=folder))
    if report.num_failed:
        raise SystemExit(f"{report.num_failed} requests failed")
    return len(trials) / report.duration_s


if __name__ == "__main__":
    sys.exit(main())
