"""What every benchmark prints and writes: figures with a baseline of the same run, and bars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "build" / "bench"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value.

    Attributes:
        baseline: Measured in the same run, in the same unit; None where nothing compares.
        bar: What `ratio` (or the value, without a baseline) has to reach; None for reading only.
        at_most: The bar is one not to exceed.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    bar: float | None = None
    at_most: bool = False

    @property
    def ratio(self) -> float | None:
        return None if not self.baseline else self.value / self.baseline

    @property
    def ok(self) -> bool:
        if self.bar is None:
            return True
        reached = self.value if self.ratio is None else self.ratio
        return reached <= self.bar if self.at_most else reached >= self.bar


def publish(name: str, figures: Sequence[Figure]) -> int:
    """Print a table, write build/bench/NAME.json, and return the exit code."""
    width = max(len(figure.name) for figure in figures)
    print(f"{'':{width}}  {'value':>12} {'unit':12} {'baseline':>12} {'ratio':>7} {'bar':>7}")
    for figure in figures:
        columns = [figure.baseline, figure.ratio, figure.bar]
        shown = ["" if c is None else f"{c:,.3g}" if c < 100 else f"{c:,.0f}" for c in columns]
        value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:,.3g}"
        flag = "" if figure.ok else "  MISSES THE BAR"
        print(
            f"{figure.name:{width}}  {value:>12} {figure.unit:12} {shown[0]:>12} "
            f"{shown[1]:>7} {shown[2]:>7}{flag}"
        )
    rows = [asdict(figure) | {"ratio": figure.ratio, "ok": figure.ok} for figure in figures]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(figure.ok for figure in figures) else 1
