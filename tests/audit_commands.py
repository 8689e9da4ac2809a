"""`kvward audit` as a process of its own, and what its report says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def audit(url: str, keys: dict[str, str], folder: Path, *options: str) -> tuple[int, str, str]:
    arguments = [part for name, key in keys.items() for part in ("--tenant", f"{name}={key}")]
    done = subprocess.run(
        [sys.executable, "-m", "kvward", "audit", url, *arguments, "--seed", "11",
         "--out", str(folder), *options],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    for key in keys.values():
        if len(key) > 3:
            kept = "".join(p.read_text(errors="replace") for p in folder.glob("*"))
            assert key not in done.stdout + done.stderr + kept
    return done.returncode, done.stdout, done.stderr


def cells(folder: Path) -> dict[str, str]:
    report = json.loads((folder / "report.json").read_text())
    return {f"{v['channel']} {v['scope']}": v["outcome"] for v in report["verdicts"]}
