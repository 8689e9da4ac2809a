"""Kill writers of the filesystem store and of the keyring, and look at what is left.

Usage: python -m attacks.crash --kills 500 --seed 1 --json FILE

Each target is attacked as often as `--kills` says. Ends with 1 when anything is not as it should
be. With `--bad` it attacks deliberately bad stores and keyrings, and ends with 1 when one of them
is not noticed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attacks.crash.campaign import run_campaign
from attacks.crash.report import conclude

GOOD = (("store", "filesystem"), ("keyring", "sqlite"))
BAD = (("store", "in-place"), ("store", "forgetful"), ("keyring", "piecemeal"))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=["store", "keyring"], action="append")
    parser.add_argument("--bad", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    reports = [
        run_campaign(target, kind, kills=arguments.kills, seed=arguments.seed)
        for target, kind in (BAD if arguments.bad else GOOD)
        if not arguments.target or target in arguments.target
    ]
    return conclude("writers killed with SIGKILL at points drawn at random", reports, arguments)


if __name__ == "__main__":
    sys.exit(main())
