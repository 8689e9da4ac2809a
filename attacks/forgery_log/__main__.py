"""Forge logs of a ledger in every way that needs no key of theirs, and try to have them verified.

Usage: python -m attacks.forgery_log --mutations 50000 --seed 1 [--json FILE]

The forger has the folder, every checkpoint that was ever signed, other logs, and keys of their own;
whoever verifies has the log's verifier key and the last checkpoint but one. A log that was rolled
back, or a second history by the log's own key, is refused by that known checkpoint alone; so those
are also shown to verify without it. Ends with 1 when a forgery verifies, when anything but an error
of verification comes out, or when the genuine log stops verifying.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

from attacks.forgery_log.campaign import Campaign
from kvward import __version__


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        report = Campaign(Path(name), seed=arguments.seed).run(arguments.mutations)
    result = {
        "what": "forged logs and proofs shown to whoever verifies a ledger",
        "tool_version": __version__,
        "python": platform.python_version(),
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began, 1),
        "forgeries": report.applied.total(),
        "refused": dict(sorted(report.refused.items())),
        "verified": report.wrong["verified"],
        "refused_by_the_known_checkpoint_alone": report.only_by_known,
        "genuine_logs_verified_in_between": report.controls,
        "wrong": dict(report.wrong),
        "examples": report.examples,
        "by_kind": dict(sorted(report.applied.items())),
    }
    text = json.dumps(result, indent=2) + "\n"
    if arguments.json:
        arguments.json.write_text(text)
    sys.stdout.write(text)
    return int(report.wrong.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
