"""Write the page of the lab's defects from their registry, or check that it still says the same.

Usage: python tools/lab_defects.py [--check]
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from kvward.lab.defects import DEFECTS, Defect

PAGE = Path(__file__).parent.parent / "docs" / "lab-defects.md"
HEADER = """\
# Defects of the lab

Written by `tools/lab_defects.py` from `kvward.lab.defects`; change it there.

`kvward lab serve` runs a small real engine. Each of these {num_defects} defects, of {num_classes}
classes of failures, can be planted in it by name; none is there unless it is named.
`kvward lab defects --json` says the same to programs, and more: what traffic shows a defect, and
where real engines had it.

*Channels* are where an outside observer could be expected to see a defect. *Rate* is what
`--defect NAME:RATE` is a rate of; without one, a defect strikes at every opportunity. A defect
that takes none is in how the engine is built, and always there. That a defect strikes does not
yet mean that it does harm.

| defect | class | what is broken | channels | start with | rate |
|---|---|---|---|---|---|
"""


def render_page(defects: list[Defect]) -> str:
    """Return the page, Markdown."""
    header = HEADER.format(
        num_defects=len(defects), num_classes=len({defect.failure_class for defect in defects})
    )
    return header + "".join(_row(defect) for defect in defects)


def _row(defect: Defect) -> str:
    cells = [
        f"`{defect.name}`",
        defect.failure_class,
        defect.summary,
        ", ".join(sorted(defect.channels)),
        f"`kvward {shlex.join(defect.arguments)}`",
        "takes none" if defect.opportunity is None else f"per {defect.opportunity}",
    ]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def main() -> int:
    """Write or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = render_page(list(DEFECTS.values()))
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print("docs/lab-defects.md differs from the registry of defects.", file=sys.stderr)
        print("Run python tools/lab_defects.py.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
