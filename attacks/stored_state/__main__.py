"""python -m attacks.stored_state --mutations N --seed S [--json FILE]

Exit code 1 when anything was accepted, crashed, or was not accounted for.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from attacks.stored_state.campaign import Campaign, Tally
from attacks.stored_state.replays import replay_everything
from attacks.stored_state.world import built
from kvward import __version__


def main() -> int:
    """Run the attack and tell what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", action="store_true", help="attack a folder on disk")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    began = time.monotonic()

    def progress(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done:,} of {options.mutations:,}", end="", file=sys.stderr)

    with (
        tempfile.TemporaryDirectory() as folder,
        built(Path(folder), seed=options.seed, files=options.files) as world,
    ):
        tally = Campaign(world, seed=options.seed).run(options.mutations, progress=progress)
    replays = replay_everything(seed=options.seed)
    seconds = time.monotonic() - began
    for name, part in (("mutations", tally), ("replays", replays)):
        _print(name, part)
    print(f"{tally.num_applied + replays.num_applied:,} attacks in {seconds:.0f} s")
    if options.json is not None:
        value = {
            "what": "mutations of stored blocks, each read as its owner would",
            "tool_version": __version__,
            "seed": options.seed,
            "seconds": round(seconds, 1),
            "mutations": _to_json(tally),
            "replays": _to_json(replays),
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return 1 if tally.failed or replays.failed else 0


def _print(title: str, tally: Tally) -> None:
    print(f"{title}: {tally.num_applied:,} applied, {tally.num_refused:,} parts refused, "
          f"{len(tally.accepted)} accepted, "
          f"{len(tally.crashed)} crashed, {len(tally.unexplained)} unexplained")  # fmt: skip
    for name, count in tally.applied.most_common():
        reasons = ", ".join(f"{r} {n:,}" for r, n in tally.reasons[name].most_common())
        print(f"  {name:36} {count:>9,}  {reasons or 'plain misses'}")
    for sentence in [*tally.accepted, *tally.crashed, *tally.unexplained][:20]:
        print(f"  WON: {sentence}")


def _to_json(tally: Tally) -> dict[str, object]:
    return {
        "applied": tally.num_applied,
        "parts_refused": tally.num_refused,
        "accepted": len(tally.accepted),
        "crashed": len(tally.crashed),
        "unexplained": len(tally.unexplained),
        "by_mutation": {
            name: {"applied": count, "reasons": dict(tally.reasons[name])}
            for name, count in sorted(tally.applied.items())
        },
    }


if __name__ == "__main__":
    sys.exit(main())
