"""Run children, end them, look at the log. Everything is drawn from one seed."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from attacks.crash.journal import Journal, keep_lines, read_journal
from attacks.crash.points import Points
from attacks.crash.report import Report
from attacks.ledger_crash.work import Work, find_problems, prepare

_FORK = multiprocessing.get_context("fork")
_KILLS_IN_ONE_FOLDER = 10
_LONGEST_S = 20.0
_LONGEST_DELAY_S = 0.25
_LONGEST_WAIT_S = 0.5
_POINTS = ("fsync", "os.rename", "write", "os.mkdir", "os.remove", "shutil.rmtree", None)
_LAST_POINT = 60


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
    after_s = rng.uniform(0, _LONGEST_DELAY_S) if at_point is None else _LONGEST_WAIT_S
    report.end(victim, after_s=after_s)
    report.ended_before_the_kill += victim.exitcode == 0
    if victim.exitcode not in (0, -signal.SIGKILL):
        report.problems["the writer failed before it was killed"] += 1
    for line in read_journal(folder / "journal"):
        if "killed_at" in line:
            report.kills_at_points[line["killed_at"]] += 1
    report.problems.update(find_problems(folder, report.found))
    # What was acknowledged stays; where the last one was killed was counted.
    lines = read_journal(folder / "journal")
    keep_lines(folder / "journal", [line for line in lines if "killed_at" not in line])


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
