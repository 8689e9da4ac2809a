"""`kvward contract ask` and `providers`."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from kvward.cli.contract import command
from kvward.contract.providers import NOTICE, load_provider, load_providers, render_letter
from kvward.errors import ConfigError


def run(*arguments: object) -> None:
    command.main([str(argument) for argument in arguments], standalone_mode=False)


def test_all_providers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    run("providers", "--json")
    said = json.loads(capsys.readouterr().out)
    assert said["notice"] == NOTICE
    assert [row["name"] for row in said["providers"]] == [row.name for row in load_providers()]
    run("providers")
    text = capsys.readouterr().out
    assert "groq           second-hand    22" in text
    assert "together       nothing found  22" in text
    assert NOTICE in text


def test_the_letter_is_printed_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letter = render_letter(load_provider("deepseek"))
    run("ask", "DeepSeek")
    assert capsys.readouterr().out == letter
    run("ask", "deepseek", "--out", tmp_path / "letter.md")
    assert capsys.readouterr().out == ""
    assert (tmp_path / "letter.md").read_text() == letter
    with pytest.raises(ConfigError, match="cannot be written"):
        run("ask", "deepseek", "--out", tmp_path / "nowhere" / "letter.md")


def test_two_formats_at_once_are_refused() -> None:
    with pytest.raises(click.UsageError, match="not both"):
        run("compare", "openai", "groq", "--json", "--markdown")
