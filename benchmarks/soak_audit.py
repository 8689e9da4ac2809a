"""Repeat the quick audit on the clean engine and count alarms. An hour; run by hand.

Usage: python benchmarks/soak_audit.py [--repeats 200] [--out benchmarks/results/soak-audit.json]

The clean engine is the lab without defects behind the gateway, with no ward inside, restarted every
ten audits. Writes the result after each audit, so an interrupted run leaves what it has. Exits with
1 on any content or metadata alarm, or more than 1 % timing alarms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from kvward import __version__
from kvward.audit.plan import Tier
from kvward.cli.auditing import AuditRequest, run_audit
from kvward.cli.process import ServerProcess
from kvward.gateway import generate_api_key, render_policy
from kvward.scope import create_root_key
from kvward.terms import Channel, Outcome, SharingLevel

AUDITS_PER_SERVER = 10
TENANTS = ("a", "b")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1)
    default = Path(__file__).parent / "results" / "soak-audit.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    result = {
        "what": "quick audits of the clean engine (gateway, lab without defects, no ward inside)",
        "tool_version": __version__,
        "python": platform.python_version(),
        "repeats": 0,
        "outputs_read": 0,
        "alarms": dict.fromkeys(Channel, 0),
        "outcomes": {},
        "inconclusive_reasons": {},
        "audits": [],
    }
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.repeats)
    began = time.monotonic()
    for start in range(0, arguments.repeats, AUDITS_PER_SERVER):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            keys, policy = prepare(folder)
            with ServerProcess(
                ["serve", "--config", str(policy), "--edge-only"], log=folder / "log"
            ) as server:
                for seed in seeds[start : start + AUDITS_PER_SERVER]:
                    audit(server.url, keys, seed, folder, result, outcomes, reasons)
                    result["outcomes"] = dict(outcomes)
                    result["inconclusive_reasons"] = dict(reasons)
                    result["seconds"] = round(time.monotonic() - began)
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
                    print(f"seed {seed}: {result['audits'][-1]}", flush=True)
    alarms = result["alarms"]
    print(json.dumps({k: v for k, v in result.items() if k != "audits"}, indent=1))
    allowed = arguments.repeats // 100
    quiet = not alarms[Channel.CONTENT] and not alarms[Channel.METADATA]
    return 0 if quiet and alarms[Channel.TIMING] <= allowed else 1


def prepare(folder: Path) -> tuple[dict[str, str], Path]:
    made = {name: generate_api_key() for name in TENANTS}
    create_root_key(folder / "root.key")
    policy = folder / "policy.toml"
    policy.write_text(
        render_policy(
            deployment="soak",
            tenants={name: [digest] for name, (_, digest) in made.items()},
            level=SharingLevel.CONVERSATION,
            upstream="",
            keep=False,
        )
    )
    return {name: key for name, (key, _) in made.items()}, policy


def audit(url, keys, seed, folder, result, outcomes, reasons) -> None:
    request = AuditRequest(
        url=url,
        keys=keys,
        model=None,
        tier=Tier.SMOKE,
        seed=seed,
        channels=list(Channel),
        declared_level=SharingLevel.CONVERSATION,
        clients=16,
        prompt_tokens=512,
    )
    report, _ = asyncio.run(run_audit(request, folder=folder))
    row = {"seed": seed, "outcome": report.outcome, "seconds": round(report.duration_s, 1)}
    for verdict in report.verdicts:
        cell = f"{verdict.channel} {verdict.scope}"
        if verdict.outcome is Outcome.VIOLATED:
            result["alarms"][verdict.channel] += 1
            row.setdefault("alarms", []).append(f"{cell}: {verdict.reason}")
        if verdict.outcome is Outcome.INCONCLUSIVE:
            reasons[f"{cell}: {verdict.reason}"] += 1
        if verdict.e_value is not None and not verdict.is_control:
            row[f"E {verdict.scope}"] = round(verdict.e_value, 3)
    outcomes[report.outcome] += 1
    result["repeats"] += 1
    result["outputs_read"] += report.plan.sizes.content_outputs
    result["audits"].append(row)


if __name__ == "__main__":
    sys.exit(main())
