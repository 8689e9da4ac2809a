"""Emptying a device tier by the operator's command: it worked, or nothing is measured after it."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvward.cli import flush as module
from kvward.cli.flush import DeviceFlush
from kvward.errors import ConfigError, TargetUnreachableError


class Target:
    """Comes back at the given question, or never."""

    def __init__(self, back_at: int | None) -> None:
        self._back_at, self.num_asked = back_at, 0

    async def answers(self) -> bool:
        self.num_asked += 1
        return self._back_at is not None and self.num_asked >= self._back_at


def flush(command: str, target: Any) -> None:
    asyncio.run(DeviceFlush(command, target)())


@pytest.mark.parametrize("command", ["", "   ", "echo 'x"])
def test_command_that_cannot_be_read_is_refused(command: str) -> None:
    with pytest.raises(ConfigError):
        DeviceFlush(command, Target(1))  # type: ignore[arg-type]


def test_command_runs_without_a_shell_and_the_target_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.001)
    target = Target(3)
    code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    flush(f"{sys.executable} -c '{code}' {tmp_path / 'x'} '$HOME; a b'", target)
    assert (tmp_path / "x").read_text() == "$HOME; a b"
    assert target.num_asked == 3


@pytest.mark.parametrize("command", ["false", "no-such-command-anywhere"])
def test_command_that_fails_ends_the_run(command: str) -> None:
    target = Target(1)
    with pytest.raises(ConfigError):
        flush(command, target)
    assert target.num_asked == 0


def test_target_that_stays_away_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.001)
    monkeypatch.setattr(module, "_BACK_S", 0.01)
    with pytest.raises(TargetUnreachableError):
        flush("true", Target(None))


def test_command_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMMAND_S", 0.05)
    code = "import pathlib, sys, time; time.sleep(0.5); pathlib.Path(sys.argv[1]).touch()"
    with pytest.raises(ConfigError):
        flush(f"{sys.executable} -c '{code}' {tmp_path / 'late'}", Target(1))
    time.sleep(1.0)
    assert not (tmp_path / "late").exists()
