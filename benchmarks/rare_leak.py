"""How often, and how soon, a race of 3 in 10,000 is found on a running engine. Hours; run by hand.

Usage: python benchmarks/rare_leak.py [--seeds 100] [--out benchmarks/results/rare-leak.json]

The engine is the lab with `table-row-mixed:0.0003`: of the requests that get their first token in
a step with others, 3 in 10,000 attend to one block of a neighbour's. Each seed has a server of its
own and is audited until a content or differential cell is violated, in parts of `--each` outputs,
or until 10,000 outputs were read. Beside it stands what theory says of as many opportunities as the
engine itself counted. The result is written after each seed, so an interrupted run leaves what it
has and is taken up again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scipy.stats import binom

from kvward import __version__
from kvward.audit.plan import LOAD_CHANNELS, Sizes, Tier
from kvward.cli.auditing import AuditRequest, run_audit
from kvward.cli.process import ServerProcess
from kvward.terms import Outcome, SharingLevel

DEFECT, RATE = "table-row-mixed", 3e-4
MAX_OUTPUTS = 10_000
KEYS = {"acorn": "rare-acorn", "birch": "rare-birch"}
COUNTED = re.compile(r"^[a-z-]+: ([\d,]+) of ([\d,]+) opportunities", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--each", type=int, default=1_000)
    default = Path(__file__).parent / "results" / "rare-leak.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
    for seed in range(len(rows), arguments.seeds):
        rows.append(run_seed(seed, each=arguments.each))
        print(rows[-1], flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(summarise(rows), indent=1) + "\n")
    total = summarise(rows)
    print(json.dumps({key: value for key, value in total.items() if key != "rows"}, indent=1))
    low, high = total["theory_99"]
    return 0 if low <= total["found"] <= high else 1


def run_seed(seed: int, *, each: int) -> dict[str, Any]:
    began = time.monotonic()
    read, first, channel = 0, None, None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "log"
        start = ["lab", "serve", "--scope-by-key", "--defect", f"{DEFECT}:{RATE}"]
        with ServerProcess([*start, "--defect-seed", str(seed)], log=log) as server:
            while read < MAX_OUTPUTS and first is None:
                request = AuditRequest(
                    url=server.url,
                    keys=KEYS,
                    model=None,
                    tier=Tier.SMOKE,
                    seed=1_000 * seed + read,
                    channels=sorted(LOAD_CHANNELS),
                    declared_level=SharingLevel.TENANT,
                    clients=16,
                    prompt_tokens=None,
                    sizes=Sizes(content_outputs=each, control_outputs=20, pairs=1),
                )
                result = asyncio.run(run_audit(request, folder=folder))
                assert result is not None
                report, trials = result
                found = {
                    verdict.channel: min(finding.trial for finding in verdict.findings)
                    for verdict in report.verdicts
                    if verdict.outcome is Outcome.VIOLATED
                }
                if found:
                    channel = min(found, key=lambda one: found[one])
                    first = read + found[channel] + 1
                read += len(trials)
        counted = COUNTED.search(log.read_text(errors="replace"))
    strikes, chances = (
        (0, 0) if counted is None else (int(x.replace(",", "")) for x in counted.groups())
    )
    return {
        "seed": seed,
        "found_at": first,
        "channel": channel,
        "outputs": read,
        "strikes": strikes,
        "opportunities": chances,
        "seconds": round(time.monotonic() - began, 1),
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found = sorted(row["found_at"] for row in rows if row["found_at"] is not None)
    outputs = sum(row["outputs"] for row in rows)
    chances = sum(row["opportunities"] for row in rows)
    share = chances / outputs if outputs else 0.0
    theory = 1 - (1 - RATE * share) ** MAX_OUTPUTS
    low, high = binom.interval(0.99, len(rows), theory)
    return {
        "what": f"{DEFECT}:{RATE} on the lab, until found or {MAX_OUTPUTS:,} outputs",
        "tool_version": __version__,
        "seeds": len(rows),
        "found": len(found),
        "theory_share": theory,
        "theory_99": [int(low), int(high)],
        "opportunities_per_output": share,
        "half_found_within": found[(len(rows) - 1) // 2] if len(found) * 2 > len(rows) else None,
        "theory_half_within": None if not share else round(0.6931 / (RATE * share)),
        "struck_and_not_found": sum(row["found_at"] is None and row["strikes"] > 0 for row in rows),
        "seconds": round(sum(row["seconds"] for row in rows)),
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
