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

from kvward.cli.selftest.matrix import Answer, Row, read_matrix
from kvward.cli.selftest.text import mark
from kvward.terms import Channel

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results" / "selftest.md"
HEADER = """\
# The auditor against the lab's defects

Written by `tools/selftest_matrix.py` from what `kvward selftest` wrote into
`benchmarks/results/`; change it there.

Each row is one engine, started by itself and audited as any other. **found**: the channel said
`VIOLATED`. -: nothing observed, with a bound. unclear: no verdict. In brackets: the channel could
be expected to see the defect, by the lab's register, and did not. !: an alarm that the defect
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
    data = path.read_bytes()
    matrix, version = read_matrix(data), json.loads(data)["tool_version"]
    planted = [row for row in matrix.rows if row.defect is not None]
    clean = [row for row in matrix.rows if row.defect is None]
    day = datetime.fromtimestamp(matrix.started_unix_s, UTC).strftime("%Y-%m-%d")
    minutes = sum(row.seconds for row in matrix.rows) / 60
    rates = sorted({row.rate for row in planted if row.rate is not None})
    at = " and ".join(f"{rate:g}" for rate in rates)
    with_rate = f"; rate {at} where a defect takes one" if at else ""
    quiet = sum(row.answer is Answer.CLEAN for row in clean)
    summary = (
        f"{day}, kvward {version}, seed {matrix.seed}, {minutes:.0f} minutes: "
        f"{matrix.outputs:,} outputs under load and {matrix.pairs} pairs for each probe scope and "
        f"engine{with_rate}. {len(matrix.found)} of {len(planted)} defects found, "
        f"{len(matrix.strays)} alarms without a cause, {quiet} of {len(clean)} engines without a "
        "defect read and quiet."
    )
    lines = [
        f"\n## {path.stem.removeprefix('selftest-')}\n",
        f"{summary}\n",
        "| engine | class | " + " | ".join(Channel) + " | first | strikes | answer |",
        "|---|---|" + "---|" * len(Channel) + "---|---|---|",
        *(_row(row) for row in matrix.rows),
    ]
    return "\n".join(lines) + "\n"


def _row(row: Row) -> str:
    struck = "" if row.strikes is None else f"{row.strikes:,} of {row.opportunities:,}"
    if row.defect is None:
        name = f"none, `{shlex.join(row.start)}`" if row.start else "none"
    else:
        name = f"`{row.defect}`"
    cells = [
        name,
        row.failure_class,
        *(mark(row, channel).replace("found", "**found**") for channel in Channel),
        "" if row.first_request is None else f"{row.first_request:,}",
        struck,
        row.answer,
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
