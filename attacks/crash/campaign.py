"""Run children, end them, look at what is left. Everything is drawn from one seed.

Children are forked at a moment at which the parent has no database open. They wait at a barrier
until the parent has opened a reader of its own, work until they end or are told to stop, and are
ended by their process id.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.crash.journal import Journal, keep_lines, read_journal
from attacks.crash.keyring_target import KeyringCheck, KeyringWork
from attacks.crash.points import Points
from attacks.crash.report import Report
from attacks.crash.scopes import TENANTS, find_owner, open_with_any_root
from attacks.crash.store_target import LIFETIMES as STORE_LIFETIMES
from attacks.crash.store_target import StoreCheck, StoreWork
from kvward.errors import KvwardError
from kvward.store.backends.filesystem import Durability

_FORK = multiprocessing.get_context("fork")
_KILLS_IN_ONE_FOLDER = 10
_LONGEST_S = 20.0
_LONGEST_DELAY_S = 0.25
_LONGEST_WAIT_S = 1.5
# How many points lie in a few operations, and in many.
_NEAR, _FAR = 60, 1200
# Points that are few among the others, and matter most.
_RARE = {
    "store": ("os.rename", "os.remove", "os.utime", "write", "fsync", "sql COMMIT", "sql BEGIN"),
    "keyring": (
        "sql COMMIT",
        "sql UPDATE",
        "sql DELETE FROM scope_keys",
        "sql PRAGMA wal_checkpoint(TRUNCATE)",
    ),
}
_NTH_RARE = 30


@dataclass(kw_only=True)
class CrashReport(Report):
    """Of a store or a keyring, which two writers may share."""

    target: str
    kills_beside_a_second_writer: int = 0
    steps_of_survivors: int = 0


@dataclass(frozen=True, kw_only=True)
class Kill:
    """How one child is ended: at a point, or after a delay."""

    at_point: int | None
    only: str | None
    after_s: float
    has_second_writer: bool


def run_campaign(target: str, kind: str, *, kills: int, seed: int) -> CrashReport:
    """Kill writers of one target, and return what was found.

    Args:
        target: "store" or "keyring".
        kind: Which backend or database, the good or a bad one.
    """
    rng = random.Random(f"{seed}/{target}/{kind}")
    report = CrashReport(target=target, kind=kind)
    began = time.monotonic()
    while report.kills < kills:
        folder = Path(tempfile.mkdtemp(prefix="kvward-crash-"))
        try:
            for _ in range(min(_KILLS_IN_ONE_FOLDER, kills - report.kills)):
                _kill_one(folder, _draw_kill(target, rng), report, rng)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    report.duration_s = round(time.monotonic() - began, 1)
    return report


def _draw_kill(target: str, rng: random.Random) -> Kill:
    how = rng.choices(("rare", "near", "far", "delay"), (45, 15, 15, 25))[0]
    last = {"rare": _NTH_RARE, "near": _NEAR, "far": _FAR}.get(how)
    return Kill(
        at_point=None if last is None else rng.randint(1, last),
        only=rng.choice(_RARE[target]) if how == "rare" else None,
        after_s=rng.uniform(0, _LONGEST_DELAY_S) if last is None else _LONGEST_WAIT_S,
        has_second_writer=rng.random() < 0.3,
    )


def _kill_one(folder: Path, kill: Kill, report: CrashReport, rng: random.Random) -> None:
    setting = rng.choice(
        [*Durability] if report.target == "store" else ["lasting", "lasting", "passing"]
    )
    setting = _setting_of(folder, setting, report.target)
    barrier = _FORK.Barrier(3 if kill.has_second_writer else 2)
    work = _work(report.target, folder, report.kind, setting, alone=not kill.has_second_writer)
    _prepare(folder, report.target)
    (folder / "stop").unlink(missing_ok=True)
    children = []
    for number in range(2 if kill.has_second_writer else 1):
        ends = (kill.at_point, kill.only) if number == 0 else (None, None)
        arguments = (work, folder, rng.randrange(2**32), barrier, *ends)
        children.append(_FORK.Process(target=_live, args=arguments))
        children[-1].start()
    victim = children[0]
    check = StoreCheck(folder, report.kind) if report.target == "store" else None
    barrier.wait(timeout=_LONGEST_S)
    report.end(victim, after_s=kill.after_s)
    if len(children) > 1:
        # The other one goes on for a while, beside what the victim left.
        children[1].join(timeout=0.05)
        (folder / "stop").touch()
        children[1].join()
        report.kills_beside_a_second_writer += 1
    report.ended_before_the_kill += victim.exitcode != -signal.SIGKILL
    _read_notes(folder, report, [child.exitcode for child in children])
    if report.target == "store":
        assert check is not None
        problems = check.problems(report.found)
    else:
        alone = not any("second" in line for line in read_journal(folder / "journal"))
        problems = KeyringCheck(folder, report.kind, str(setting), alone=alone).problems(
            report.found
        )
    try:
        report.problems.update(problems)
    except KvwardError as exc:
        report.problems[f"the check fails: {exc.code}: {exc.message.split(':')[-1]}"] += 1


def _setting_of(folder: Path, setting: Any, target: str) -> Any:  # Any: a target's own setting
    """Return the lifetimes of a keyring, which stay what they were; the store's may change."""
    if target == "keyring":
        path = folder / "lifetimes"
        if not path.exists():
            path.write_text(setting)
        return path.read_text()
    return setting


def _prepare(folder: Path, target: str) -> None:
    """Make the keyring under a store before anybody is killed: it is not what is attacked."""
    if target == "store" and not (folder / "keyring.db").exists():
        keyring = open_with_any_root(folder / "keyring.db", STORE_LIFETIMES)
        for tenant in TENANTS:
            keyring.writing_keys(find_owner(keyring, tenant, b"one"))
        keyring.database.close()


def _work(
    target: str, folder: Path, kind: str, setting: Any, *, alone: bool
) -> Callable[[random.Random, Journal], StoreWork | KeyringWork]:
    if target == "store":
        return lambda rng, journal: StoreWork(folder, kind, setting, rng, journal)
    return lambda rng, journal: KeyringWork(folder, kind, setting, rng, journal, alone=alone)


def _live(
    work: Callable[[random.Random, Journal], StoreWork | KeyringWork],
    folder: Path,
    seed: int,
    barrier: Any,
    kill_at: int | None,
    only: str | None,
) -> None:
    """Be a child."""
    journal = Journal(folder / "journal")
    points = Points(kill_at, only=only, tell=lambda name: journal.write(killed_at=name))
    points.install()
    if barrier.parties > 2:
        journal.write(second=True)
    barrier.wait(timeout=_LONGEST_S)
    points.arm()
    # Opening is killed, too: it makes tables, and makes index and files agree.
    working = work(random.Random(seed), journal)
    steps, deadline = 0, time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline and not (folder / "stop").exists():
        working.step()
        steps += 1
    working.close()
    journal.write(steps=steps)


def _read_notes(folder: Path, report: CrashReport, exits: list[int | None]) -> None:
    path = folder / "journal"
    lines = read_journal(path)
    for line in lines:
        if "killed_at" in line:
            report.kills_at_points[line["killed_at"]] += 1
        report.steps_of_survivors += line.get("steps", 0)
        for name, count in line.get("events", {}).items():
            report.problems[f"a writer beside the victim met {name}"] += count
    for code in exits[1:]:
        if code != 0:
            report.problems["a writer beside the victim failed"] += 1
    if exits[0] not in (0, -signal.SIGKILL):
        report.problems["the victim failed before it was killed"] += 1
    # Noted once: what stays is what the checks of a keyring need to know.
    keep_lines(path, [line for line in lines if line.keys() & {"done", "about", "second"}])
