"""Kill the writer of a ledger, and look at what is left.

Usage: python -m attacks.ledger_crash --kills 500 --seed 1 --json FILE

The writer dies between any two of its operations on files, or in the middle of a write. Afterwards
the log has to verify, and to hold everything that was acknowledged. Ends with 1 when it does not.
With `--bad` it attacks deliberately bad writers, and ends with 1 when one of them is not noticed.
What a loss of power leaves is not tried: the order of writing and synchronising has a test.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

from attacks.ledger_crash.campaign import run_campaign
from attacks.ledger_crash.work import BAD, GOOD
from kvward import __version__


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bad", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    reports = [
        run_campaign(kind, kills=arguments.kills, seed=arguments.seed)
        for kind in (BAD if arguments.bad else (GOOD,))
    ]
    result = {
        "what": "writers of a ledger killed with SIGKILL at points drawn at random",
        "tool_version": __version__,
        "python": platform.python_version(),
        "seed": arguments.seed,
        "targets": [report.to_json() for report in reports],
    }
    text = json.dumps(result, indent=2) + "\n"
    if arguments.json:
        arguments.json.write_text(text)
    sys.stdout.write(text)
    wrong = [bool(report.problems) for report in reports]
    return int(not all(wrong)) if arguments.bad else int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
