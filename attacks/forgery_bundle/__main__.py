"""Lay forged evidence bundles before `kvward verify`, and count what it says.

Usage: python -m attacks.forgery_bundle --mutations 50000 --seed 1 [--json FILE]

Ends with 1 when a forgery verified, was left undecided or crashed, or a genuine bundle did not.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attacks.forgery_bundle.campaign import Campaign, iter_forgeries
from attacks.forgery_bundle.world import World
from kvward import __version__


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    # What is attacked is what was loaded by now, whatever is changed while it runs.
    commit = _commit()
    world = World()
    began = time.monotonic()
    report = Campaign(world, seed=arguments.seed).run(
        arguments.mutations, progress=_progress(arguments.mutations)
    )
    seconds = time.monotonic() - began
    result = {
        "what": "forged evidence bundles, laid before the function that `kvward verify` calls",
        "tool_version": __version__,
        "commit": commit,
        "python": platform.python_version(),
        "seed": arguments.seed,
        "seconds": round(seconds, 1),
        "kinds": len(iter_forgeries()),
        "bundle_bytes": sum(map(len, world.files.values())),
        "trials_per_history": world.clean.files.history.count(b"\n") - 1,
        **report.to_json(),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.write(report.render())
    sys.stdout.write(f"{seconds:.1f} s, {arguments.mutations / seconds:.0f} forgeries/s.\n")
    return int(bool(report.wrong))


def _progress(total: int) -> Callable[[int], None]:
    """Return what counts on a terminal, and does nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda _: None

    def draw(done: int) -> None:
        if done % 100 == 0 or done == total:
            sys.stderr.write(f"\r{done} of {total}" + ("\n" if done == total else ""))
            sys.stderr.flush()

    return draw


def _commit() -> str | None:
    """Return the commit that is attacked, with a mark if its sources were changed."""
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--dirty", "--match="],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
