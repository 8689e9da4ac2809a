"""The page of defects is made from the registry, and a page that is not is noticed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from kvward.lab.defects import DEFECTS

TOOL = Path(__file__).parents[4] / "tools" / "lab_defects.py"


def test_page_has_a_row_for_every_defect_and_a_stale_one_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("lab_defects", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tmp_path / "page.md"
    monkeypatch.setattr(tool, "PAGE", page)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["lab_defects.py", *arguments])
        return int(tool.main())

    assert run("--check") == 1  # there is none
    assert run() == run("--check") == 0
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(DEFECTS)
    for row, defect in zip(rows, DEFECTS.values(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[:3] == [f"`{defect.name}`", defect.failure_class, defect.summary]
        assert cells[3].split(", ") == sorted(defect.channels)
        assert cells[4] == f"`kvward {' '.join(defect.arguments)}`"
        assert cells[5] == (f"per {defect.opportunity}" if defect.takes_rate else "takes none")
    page.write_text(page.read_text().replace(rows[0], ""))
    assert run("--check") == 1
    assert "differs" in capsys.readouterr().err
