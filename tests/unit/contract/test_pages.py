"""The pages are made from the data, and a page that is not is noticed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvward.contract.controls import load_controls
from kvward.contract.providers import CLAUSES, NOTICE, load_providers

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tool() -> ModuleType:
    path = ROOT / "tools" / "contract_pages.py"
    spec = importlib.util.spec_from_file_location("contract_pages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_stale_page_is_noticed(
    tool: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["contract_pages.py", *arguments])
        return int(tool.main())

    assert run("--check") == 0  # the pages of the repository
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    assert run("--check") == 1
    assert run() == run("--check") == 0
    page = tmp_path / "docs" / "providers.md"
    page.write_text(page.read_text() + "more\n")
    capsys.readouterr()
    assert run("--check") == 1
    assert capsys.readouterr().out.startswith("providers.md is not what the data say")


def test_the_page_of_providers_has_a_row_for_every_clause(tool: ModuleType) -> None:
    providers = load_providers()
    text = tool.render_providers(providers)
    assert NOTICE in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(providers) * len(CLAUSES)
    for provider in providers:
        assert f'<a id="{provider.name}"></a>' in text


def test_the_page_of_controls_has_a_row_for_every_control(tool: ModuleType) -> None:
    table = load_controls()
    text = tool.render_controls(table)
    for control in table.controls:
        assert sum(line.startswith(f"| {control.number} ") for line in text.splitlines()) == 1
