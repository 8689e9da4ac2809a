"""Answer a sealed store with mutated, moved, spliced and replayed blocks, and count what it does.

Usage: python -m attacks.hostile_state --mutations 1000000 --seed 1 [--backend memory] [--json FILE]

Ends with 1 when anything was accepted that must not be, crashed, was not wiped, not dropped or not
counted.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from attacks.hostile_state.campaign import Campaign
from attacks.hostile_state.place import FilesystemPlace, MemoryPlace
from attacks.hostile_state.world import World
from kvward import __version__

_BAR = 40


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=["memory", "filesystem"], default="memory")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name))
        place = (
            MemoryPlace()
            if arguments.backend == "memory"
            else FilesystemPlace(Path(name) / "store")
        )
        began = time.monotonic()
        report = Campaign(world, place, seed=arguments.seed).run(
            arguments.mutations, progress=_progress(arguments.mutations)
        )
        seconds = time.monotonic() - began
        world.close()
    result = {
        "what": "mutated, moved, spliced and replayed blocks answered by the backend of a store",
        "tool_version": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "seed": arguments.seed,
        "backend": arguments.backend,
        "seconds": round(seconds, 1),
        "mutations_per_second": round(report.applied / seconds),
        **report.to_json(),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.stdout.write(report.render())
    sys.stdout.write(f"{seconds:.1f} s, {report.applied / seconds:.0f} mutations/s.\n")
    return int(bool(report.wrong))


def _progress(total: int) -> Callable[[int], None]:
    """Return what draws a bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda _: None
    drawn = -1

    def draw(done: int) -> None:
        nonlocal drawn
        percent = 100 * done // max(1, total)
        if percent != drawn:
            drawn = percent
            bar = "#" * (_BAR * percent // 100)
            end = "\n" if done >= total else ""
            sys.stderr.write(f"\r[{bar:{_BAR}}] {percent:3} %{end}")
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
