"""The coverage-guided fuzzer finds nothing in a bounded number of runs, and finds what is broken.

The same as `python -m attacks.fuzz_header`, in small.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Where there are wheels of atheris, it has to be installed: no silent skip.
HAS_WHEELS = (
    sys.platform == "linux"
    and platform.machine() == "x86_64"
    and platform.python_implementation() == "CPython"
    and (3, 11) <= sys.version_info < (3, 14)
)
RUNS = 100_000

pytestmark = pytest.mark.skipif(not HAS_WHEELS, reason="there are no wheels of atheris for this")


def fuzz(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "attacks.fuzz_header", "--artifacts", str(folder), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_found(tmp_path: Path) -> None:
    code, output = fuzz(tmp_path, "--runs", str(RUNS))
    assert code == 0, output
    assert f"Done {RUNS} runs" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("control", ["parser", "opener", "token"])
def test_what_is_broken_is_found(tmp_path: Path, control: str) -> None:
    code, output = fuzz(tmp_path, "--runs", "1000000", "--control", control)
    assert code != 0
    assert "AssertionError" in output
    assert len(list(tmp_path.iterdir())) == 1
