"""Write the page of the auditor's self-test from its recorded runs, or check that it says the same.

Usage: python tools/selftest_matrix.py [--check]

Each file benchmarks/results/selftest-*.json is what one `kvward selftest` wrote.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results" / "selftest.md"
CHANNELS = ("content", "differential", "metadata", "timing")
WORDS = {"VIOLATED": "**found**", "INCONCLUSIVE": "unclear", "NOT_OBSERVED": "-"}
HEADER = """\
# The auditor against the lab's defects

Written by `tools/selftest_matrix.py` from what `kvward selftest` wrote into
`benchmarks/results/`; change it there.

Each row is one engine, started by itself and audited as any other. **found**: the channel said
`VIOLATED`. -: nothing observed, with a bound. unclear: no verdict. In brackets: the channel could
be expected to see the defect, by the lab's register, and did not. **!**: an alarm that the defect
does not explain. *First* is the request of its audit with whose answer the evidence was complete;
*strikes* is how often the engine itself says that the defect struck, of its opportunities, all
audits of the row together.
"""


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = HEADER + "".join(_section(path) for path in sorted(RUNS.glob("selftest-*.json")))
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is not what the runs say; run python tools/selftest_matrix.py")
        return 1
    return 0


def _section(path: Path) -> str:
    run = json.loads(path.read_text(encoding="utf-8"))
    rows = run["rows"]
    planted = [row for row in rows if row["defect"] is not None]
    clean = [row for row in rows if row["defect"] is None]
    day = datetime.fromtimestamp(run["started_unix_s"], UTC).strftime("%Y-%m-%d")
    minutes = sum(row["seconds"] for row in rows) / 60
    rates = sorted({row["rate"] for row in planted if row["rate"] is not None})
    at = " and ".join(f"{rate:g}" for rate in rates)
    found = sum(row["answer"] == "found" for row in planted)
    quiet = sum(row["answer"] == "clean" for row in clean)
    with_rate = f"; rate {at} where a defect takes one" if at else ""
    summary = (
        f"{day}, kvward {run['tool_version']}, seed {run['seed']}, {minutes:.0f} minutes: "
        f"{run['outputs']:,} outputs under load and {run['pairs']} pairs for each probe scope and "
        f"engine{with_rate}. {found} of {len(planted)} defects found, {len(run['stray'])} alarms "
        f"without a cause, {quiet} of {len(clean)} engines without a defect read and quiet."
    )
    lines = [
        f"\n## {path.stem.removeprefix('selftest-')}\n",
        f"{summary}\n",
        "| engine | class | " + " | ".join(CHANNELS) + " | first | strikes | answer |",
        "|---|---|" + "---|" * len(CHANNELS) + "---|---|---|",
        *(_row(row) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any]) -> str:
    first = row["first_request"]
    struck = "" if row["strikes"] is None else f"{row['strikes']:,} of {row['opportunities']:,}"
    if row["defect"] is None:
        name = f"none, `{shlex.join(row['start'])}`" if row["start"] else "none"
    else:
        name = f"`{row['defect']}`"
    cells = [
        name,
        row["class"],
        *(_mark(row, channel) for channel in CHANNELS),
        "" if first is None else f"{first:,}",
        struck,
        row["answer"],
    ]
    return "| " + " | ".join(cells) + " |"


def _mark(row: dict[str, Any], channel: str) -> str:
    seen = next((one for one in row["seen"] if one["channel"] == channel), None)
    word = "." if seen is None else WORDS[seen["outcome"]]
    if channel in row["stray"]:
        return f"{word} **!**"
    return f"({word})" if channel in row["expected"] and channel not in row["fired"] else word


if __name__ == "__main__":
    sys.exit(main())
