"""The table of controls names what exists: clauses, standards, commands."""

from __future__ import annotations

from datetime import UTC, date, datetime
from importlib import import_module

import click
import pytest

from kvward.cli.main import COMMANDS
from kvward.contract.controls import Fit, load_controls, parse_controls
from kvward.contract.providers import CLAUSES
from kvward.errors import ConfigError

TABLE = load_controls()
GOOD = """\
[standards.s]
title = "S"
version = "1"
read = "2026-12-03"
sureness = "low"
note = "n"

[[controls]]
standard = "s"
number = "1"
asks = "a"
fit = "part"
clauses = ["scope", "origin", "binding", "untrusted", "secrecy", "lifetime", "erasure", "metadata",
    "interference", "failure", "evidence"]

[[controls.evidence]]
command = "kvward audit"
shows = "x"
"""


def test_every_clause_has_a_control_and_every_control_evidence() -> None:
    for clause in CLAUSES:
        assert TABLE.of_clause(clause)
    for control in TABLE.controls:
        assert control.evidence
        assert control.asks.endswith(".")


def test_the_control_about_caches_is_met_directly() -> None:
    (direct,) = (control for control in TABLE.controls if control.fit is Fit.DIRECT)
    assert (direct.standard, direct.number, direct.level) == ("aisvs", "C5.6.1", 2)
    assert direct in TABLE.of_clause("scope")
    assert "C5.6.2" in {control.number for control in TABLE.of_clause("binding")}


def test_standards_carry_version_date_and_sureness() -> None:
    for standard in TABLE.standards.values():
        assert standard.version
        assert standard.note.endswith(".")
        if standard.read != "second-hand":
            assert date.fromisoformat(standard.read) <= datetime.now(UTC).date()


@pytest.mark.parametrize(
    "line", sorted({shown.command for control in TABLE.controls for shown in control.evidence})
)
def test_commands_that_are_named_exist(line: str) -> None:
    tool, name, *rest = line.split()
    assert tool == "kvward"
    command = import_module(COMMANDS[name][0]).command
    for word in rest:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    assert isinstance(command, click.Command)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "S"', 'title = "S"\nrank = 1', "rank"),
        ('fit = "part"', 'fit = "full"', "full"),
        ('fit = "part"', 'fit = "part"\nowner = "x"', "owner"),
        ('shows = "x"', 'shows = "x"\nwhen = "now"', "when"),
        ('standard = "s"', 'standard = "t"', "no standard t"),
        ('"origin"', '"origins"', "no clause origins"),
        ('"origin", ', "", "no control for origin"),
        ('read = "2026-12-03"', 'read = "yesterday"', "yesterday"),
        ('[[controls.evidence]]\ncommand = "kvward audit"\nshows = "x"\n', "", "evidence"),
    ],
)
def test_what_is_not_understood_is_refused(old: str, new: str, words: str) -> None:
    assert parse_controls(GOOD).controls
    with pytest.raises(ConfigError, match=words):
        parse_controls(GOOD.replace(old, new))


def test_the_same_control_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        parse_controls(GOOD + GOOD[GOOD.index("[[controls]]") :])
