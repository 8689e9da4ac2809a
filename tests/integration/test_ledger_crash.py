"""Writers of a ledger that are killed leave a log that verifies, with all that was acknowledged."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from attacks.crash.journal import Journal
from attacks.ledger_crash.campaign import run_campaign
from attacks.ledger_crash.work import Work, find_problems, prepare

from kvward.ledger import append as append_module
from kvward.ledger.append import LogAppender


def test_what_killed_writers_leave_verifies_and_lacks_nothing() -> None:
    report = run_campaign("writer", kills=20, seed=5)
    assert dict(report.problems) == {}
    assert report.kills == 20
    assert report.found["acknowledged entries looked for"] > 20
    assert report.kills_at_points.total() > 5


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad writer changes these for its whole process."""
    monkeypatch.setattr(LogAppender, "append", LogAppender.append)
    monkeypatch.setattr(append_module, "publish_file", append_module.publish_file)


@pytest.mark.parametrize("kind", ["checkpoint-first", "in-place"])
def test_bad_writers_are_bad_only_when_they_are_killed(
    kind: str, tmp_path: Path, restored: None
) -> None:
    prepare(tmp_path)
    journal = Journal(tmp_path / "journal")
    work = Work(tmp_path, kind, random.Random(1), journal)
    for _ in range(30):
        work.step()
    work.close()
    assert find_problems(tmp_path, Counter()) == []


@pytest.mark.parametrize("kind", ["checkpoint-first", "early"])
def test_bad_writers_are_noticed(kind: str) -> None:
    assert run_campaign(kind, kills=60, seed=5).problems
