"""Read a million answers of clean engines under load and count alarms. Hours; run by hand.

Usage: python benchmarks/soak_outputs.py [--outputs 1000000] [--each 10000] [--out FILE]

The clean engine is the lab without defects, started in turn in every way in which one of its
defects needs it: with a host tier, with slots, with drafts, with few blocks and so on. Each audit
reads the content and the differential channel of as many answers as `--each` says, from a server
of its own. The result is written after each audit, so an interrupted run leaves what it has and is
taken up again where it ended. Exits with 1 on any alarm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

from kvward import __version__
from kvward.audit.plan import LOAD_CHANNELS, Sizes, Tier
from kvward.audit.stats.bounds import upper_rate
from kvward.cli.auditing import AuditRequest, run_audit
from kvward.cli.process import ServerProcess
from kvward.lab.defects import DEFECTS
from kvward.terms import Outcome, SharingLevel

KEYS = {"acorn": "soak-acorn", "birch": "soak-birch"}
CLIENTS = 16
CONTROL_OUTPUTS = 60
BY_KEY = "--scope-by-key"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", type=int, default=1_000_000)
    parser.add_argument("--each", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    default = Path(__file__).parent / "results" / "soak-outputs.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    audits = json.loads(arguments.out.read_text())["audits"] if arguments.out.exists() else []
    starts = list(dict.fromkeys(defect.start for defect in DEFECTS.values()))
    while sum(row["outputs"] for row in audits) < arguments.outputs:
        number = len(audits)
        seed = arguments.seed + number
        row = audit(starts[number % len(starts)], outputs=arguments.each, seed=seed)
        audits.append(row)
        print(row, flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(summarise(audits), indent=1) + "\n")
    total = summarise(audits)
    print(json.dumps({key: value for key, value in total.items() if key != "audits"}, indent=1))
    return 1 if total["alarms"] else 0


def audit(start: tuple[str, ...], *, outputs: int, seed: int) -> dict[str, object]:
    by_key = [] if BY_KEY in start else [BY_KEY]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ServerProcess(["lab", "serve", *by_key, *start], log=folder / "log") as server:
            request = AuditRequest(
                url=server.url,
                keys=KEYS,
                model=None,
                tier=Tier.SMOKE,
                seed=seed,
                channels=sorted(LOAD_CHANNELS),
                declared_level=SharingLevel.TENANT,
                clients=CLIENTS,
                prompt_tokens=None,
                sizes=Sizes(content_outputs=outputs, control_outputs=CONTROL_OUTPUTS, pairs=1),
            )
            began = time.monotonic()
            report, _ = asyncio.run(run_audit(request, folder=folder))
    alarms = [
        f"{verdict.channel} {verdict.scope}: {verdict.reason}"
        for verdict in report.verdicts
        if verdict.outcome is Outcome.VIOLATED
    ]
    content = [v for v in report.verdicts if v.channel in LOAD_CHANNELS and not v.is_control]
    return {
        "start": list(start),
        "seed": seed,
        "outputs": outputs,
        "failed": max(verdict.failed for verdict in content),
        "outcomes": {f"{v.channel} {v.scope}": v.outcome for v in content},
        "alarms": alarms,
        "seconds": round(time.monotonic() - began, 1),
    }


def summarise(audits: list[dict]) -> dict[str, object]:
    read = sum(row["outputs"] - row["failed"] for row in audits)
    alarms = sum(len(row["alarms"]) for row in audits)
    return {
        "what": "answers of lab engines without defects, read for content and differences",
        "tool_version": __version__,
        "python": platform.python_version(),
        "audits_run": len(audits),
        "ways_started": len({tuple(row["start"]) for row in audits}),
        "outputs_read": read,
        "alarms": alarms,
        "inconclusive": sum(
            outcome == Outcome.INCONCLUSIVE
            for row in audits
            for outcome in row["outcomes"].values()
        ),
        "rate_of_alarms_at_most_95": upper_rate(alarms, read, confidence=0.95),
        "seconds": round(sum(row["seconds"] for row in audits)),
        "audits": audits,
    }


if __name__ == "__main__":
    sys.exit(main())
