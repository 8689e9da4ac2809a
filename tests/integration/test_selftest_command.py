"""`kvward selftest` as somebody calls it: one defect, the clean engine beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvward.terms import ExitCode


def selftest(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvward", "selftest", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.timeout(120)
def test_defect_is_found_and_the_clean_engine_is_not_accused(tmp_path: Path) -> None:
    done = selftest(
        "--defect", "scope-missing", "--outputs", "200", "--pairs", "20", "--seed", "5",
        "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    assert done.returncode == ExitCode.NOT_OBSERVED, done.stdout + done.stderr
    value = json.loads(done.stdout)
    assert value == json.loads((tmp_path / "out" / "selftest.json").read_text())
    clean, planted = value["rows"]
    assert (clean["defect"], clean["answer"], clean["fired"]) == (None, "clean", [])
    assert (planted["defect"], planted["answer"]) == ("scope-missing", "found")
    assert "metadata" in planted["fired"]
    assert 0 < planted["first_request"] <= planted["seen"][0]["num_requests"]
    assert "scope-missing" in (tmp_path / "out" / "selftest.html").read_text()


def test_unknown_defect_is_said() -> None:
    done = selftest("--defect", "no-such-thing")
    assert done.returncode == ExitCode.USAGE
    assert "kvward lab defects" in done.stderr


@pytest.mark.parametrize(
    "given", ["torn-write-served:0", "torn-write-served:x", "hidden-sharing:0.2"]
)
def test_rate_that_a_defect_cannot_have_is_said(given: str) -> None:
    done = selftest("--defect", given)
    assert done.returncode == ExitCode.USAGE
    assert given.partition(":")[0] in done.stderr
    assert "Next:" in done.stderr
