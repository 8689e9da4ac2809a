"""Two promises side by side."""

from __future__ import annotations

import json

import pytest

from kvward.cli.contract import command
from kvward.cli.contract_providers import find_side
from kvward.contract.providers import (
    CLAUSES,
    NOTICE,
    Side,
    compare_sides,
    load_provider,
    render_markdown,
    render_text,
    side_of_provider,
)
from kvward.errors import ConfigError, UsageError

LEFT = side_of_provider(load_provider("openai"))
RIGHT = side_of_provider(load_provider("fireworks"))
FACTS = ("set by", "separated by", "kept for", "kept in", "controls", "removed by")


def run(*arguments: object) -> None:
    command.main([str(argument) for argument in arguments], standalone_mode=False)


def test_rows_are_facts_then_clauses_then_the_rest() -> None:
    rows = compare_sides(LEFT, Side(title="other", rows={"scope": "each alone", "price": "much"}))
    assert tuple(row.name for row in rows) == (*FACTS, *CLAUSES, "price")
    by_name = {row.name: row for row in rows}
    assert by_name["set by"].left == "provider"
    assert by_name["set by"].right == "not stated"
    assert by_name["price"].left == "not stated"
    assert by_name["untrusted"].left == "not stated [1 open]"
    assert by_name["lifetime"].left.endswith("[stated; 2 open]")
    assert by_name["kept for"].left.startswith("From GPT-5.6 on")


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_text_loses_nothing_and_keeps_to_its_width(columns: int) -> None:
    text = render_text(LEFT, RIGHT, columns=columns)
    for line in text.splitlines():
        # Names of fields may be longer than a very narrow column.
        assert len(line) <= max(columns, 64)
    words = set(text.split())
    for side in (LEFT, RIGHT):
        assert set(side.rows["scope"].split()) <= words


def test_markdown_is_one_table() -> None:
    tricky = Side(title="a|b", rows={"scope": "x | y"})
    lines = render_markdown(tricky, RIGHT).splitlines()
    assert lines[0].startswith("| | a\\|b | Fireworks AI")
    assert "x \\| y" in "\n".join(lines)
    assert all(line.replace("\\|", "").count("|") == 4 for line in lines)


def test_a_path_goes_to_the_reader_of_contracts() -> None:
    with pytest.raises(ConfigError, match="cannot be compared yet"):
        find_side("contract.toml")
    taken = find_side("folder/contract", from_file=lambda path: Side(title=path, rows={}))
    assert taken.title == "folder/contract"
    with pytest.raises(UsageError, match="Nothing is known"):
        find_side("nobody")


def test_compare_speaks_three_languages(capsys: pytest.CaptureFixture[str]) -> None:
    run("compare", "openai", "fireworks", "--json")
    said = json.loads(capsys.readouterr().out)
    assert said["notice"] == NOTICE
    assert [row["name"] for row in said["rows"]] == [*FACTS, *CLAUSES]
    run("compare", "openai", "fireworks", "--markdown")
    assert "| scope | Caches are not shared between organisations" in capsys.readouterr().out
    run("compare", "openai", "fireworks")
    assert NOTICE in capsys.readouterr().out
