"""Run children, end them, look at the log. Everything is drawn from one seed."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attacks.crash.journal import Journal, read_journal
from attacks.crash.points import Points
from attacks.ledger_crash.work import Work, find_problems, prepare

_FORK = multiprocessing.get_context("fork")
_KILLS_IN_ONE_FOLDER = 10
_LONGEST_S = 20.0
_LONGEST_DELAY_S = 0.25
_LONGEST_WAIT_S = 1.5
_POINTS = ("fsync", "os.rename", "write", "os.mkdir", "os.remove", "shutil.rmtree", None)
_LAST_POINT = 60


@dataclass(kw_only=True)
class Report:
    """What a campaign did and found."""

    kind: str
    kills: int = 0
    kills_at_points: Counter[str] = field(default_factory=Counter)
    kills_after_a_delay: int = 0
    ended_before_the_kill: int = 0
    found: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    duration_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as it is written down."""
        return {
            name: dict(sorted(value.items())) if isinstance(value, Counter) else value
            for name, value in vars(self).items()
        }


def run_campaign(kind: str, *, kills: int, seed: int) -> Report:
    """Kill writers, and return what was found.

    Args:
        kind: Of `attacks.ledger_crash.work`: the good writer or a bad one.
    """
    rng, report = random.Random(f"{seed}/{kind}"), Report(kind=kind)
    began = time.monotonic()
    while report.kills < kills:
        folder = Path(tempfile.mkdtemp(prefix="kvward-ledger-crash-"))
        try:
            for _ in range(min(_KILLS_IN_ONE_FOLDER, kills - report.kills)):
                _kill_one(folder, report, rng)
                if report.problems:
                    break  # what a broken log brings forth afterwards says nothing
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if report.problems and kind != "writer":
            break
    report.duration_s = round(time.monotonic() - began, 1)
    return report


def _kill_one(folder: Path, report: Report, rng: random.Random) -> None:
    only = rng.choice(_POINTS)
    at_point = None if rng.random() < 0.2 else rng.randint(1, _LAST_POINT)
    prepare(folder)
    barrier = _FORK.Barrier(2)
    arguments = (folder, report.kind, rng.randrange(2**32), barrier, at_point, only)
    victim = _FORK.Process(target=_live, args=arguments)
    victim.start()
    barrier.wait(timeout=_LONGEST_S)
    victim.join(timeout=rng.uniform(0, _LONGEST_DELAY_S) if at_point is None else _LONGEST_WAIT_S)
    if victim.exitcode is None:
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        report.kills_after_a_delay += 1
    report.kills += victim.exitcode == -signal.SIGKILL
    report.ended_before_the_kill += victim.exitcode == 0
    if victim.exitcode not in (0, -signal.SIGKILL):
        report.problems["the writer failed before it was killed"] += 1
    for line in read_journal(folder / "journal"):
        if "killed_at" in line:
            report.kills_at_points[line["killed_at"]] += 1
    report.problems.update(find_problems(folder, report.found))
    # What was acknowledged stays; where the last one was killed was counted.
    kept = [line for line in read_journal(folder / "journal") if "killed_at" not in line]
    (folder / "journal").unlink(missing_ok=True)
    journal = Journal(folder / "journal")
    for line in kept:
        journal.write(**line)
    journal.close()


def _live(
    folder: Path, kind: str, seed: int, barrier: Any, kill_at: int | None, only: str | None
) -> None:
    """Be a child."""
    journal = Journal(folder / "journal")
    points = Points(kill_at, only=only, tell=lambda name: journal.write(killed_at=name))
    points.install()
    barrier.wait(timeout=_LONGEST_S)
    points.arm()
    # Opening is killed, too: it cuts what lies beyond the checkpoint.
    work = Work(folder, kind, random.Random(seed), journal)
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        work.step()
    work.close()
