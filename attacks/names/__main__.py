"""Try to tell from names and bytes of a store what is cached, and whether two tenants share it.

Usage: python -m attacks.names --worlds 300 --guesses 10000 --seed 1 [--pair tenants] [--json FILE]

Ends with 1 when a strategy does better than chance; it says so wrongly with a probability of at
most one in a million.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

from attacks.names.campaign import run_campaign
from attacks.names.verdict import FALSE_ALARM
from attacks.names.world import PAIRS
from kvward import __version__


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=300)
    parser.add_argument("--guesses", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pair", choices=sorted(PAIRS), default="tenants")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    def progress(done: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == arguments.worlds else ""
            sys.stderr.write(f"\r{done} of {arguments.worlds} worlds{end}")

    began = time.monotonic()
    verdicts = run_campaign(
        num_worlds=arguments.worlds,
        num_guesses=arguments.guesses,
        seed=arguments.seed,
        pair=arguments.pair,
        progress=progress,
    )
    seconds = time.monotonic() - began
    won = [verdict.strategy for verdict in verdicts if verdict.wins]
    for verdict in sorted(verdicts, key=lambda verdict: verdict.p_value):
        sys.stdout.write(
            f"{verdict.strategy:48} {verdict.first:5} of {verdict.worlds:5}"
            f"  adjusted p {verdict.p_value:.2g}{'  WINS' if verdict.wins else ''}\n"
        )
    sys.stdout.write(
        f"{len(won)} of {len(verdicts)} strategies do better than chance. {seconds:.1f} s.\n"
    )
    if arguments.json:
        result = {
            "what": "strategies that guess what is cached, or shared, from names and bytes alone",
            "tool_version": __version__,
            "python": platform.python_version(),
            "seed": arguments.seed,
            "pair": arguments.pair,
            "worlds": arguments.worlds,
            "guesses": arguments.guesses,
            "false_alarm_probability": FALSE_ALARM,
            "seconds": round(seconds, 1),
            "won": won,
            "verdicts": [asdict(verdict) for verdict in verdicts],
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(won))


if __name__ == "__main__":
    sys.exit(main())
