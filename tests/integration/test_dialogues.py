"""Dialogues against the lab: nothing on a clean engine, and what two defects do to their past."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit_commands import audit, cells
from kvward.audit.history import Arm, load_history
from kvward.audit.judge import judge
from kvward.cli.process import ServerProcess
from kvward.terms import ExitCode, ProbeScope

pytestmark = pytest.mark.timeout(240)
KEYS = {"a": "turn-key-1", "b": "turn-key-2"}
LAB = ["lab", "serve", "--scope-by-key", "--blocks", "192"]


def test_clean_engine_shows_nothing_of_what_was_given_up(tmp_path: Path) -> None:
    with ServerProcess(LAB, log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", "--channel", "content")
    assert code == ExitCode.NOT_OBSERVED, out
    assert cells(tmp_path / "out")["content S1"] == "NOT_OBSERVED"
    plan, trials = load_history(tmp_path / "out" / "history.jsonl")
    turns = [trial for trial in trials if trial.arm is Arm.TURN]
    outputs = [t for t in trials if t.arm in {Arm.WRITE, Arm.READ, Arm.TWIN, Arm.RETRY, Arm.TURN}]
    assert plan.num_turn_outputs == 120 <= len(turns)
    assert 600 <= len(outputs) <= 604
    given_up = [t for t in trials if t.arm is Arm.CANCEL and t.prompt.startswith("dialogue:")]
    assert given_up
    (verdict,) = [
        v for v in judge(plan, trials, history_digest="h").verdicts if v.scope is ProbeScope.S1
    ]
    assert verdict.bound is not None
    assert verdict.bound < 0.05
    behind = next(c for c in verdict.controls if "behind reuse" in c.name)
    assert behind.seen == behind.tried > 40


def test_block_with_what_was_left_there_shows_in_ones_own_dialogue(tmp_path: Path) -> None:
    """A hit that is one block too long: some ten of 121 answers lack a turn or show an old one."""
    with ServerProcess([*LAB, "--defect", "hit-too-long"], log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", "--channel", "content")
    assert code == ExitCode.VIOLATED, out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (cell,) = [v for v in report["verdicts"] if v["scope"] == "S1"]
    assert cell["outcome"] == "VIOLATED"
    names = {finding["note"].partition(":")[0] for finding in cell["findings"]}
    assert "lost own write" in names
    assert names <= {"stale read", "dirty read", "lost own write"}
    assert all(finding["source"] in {None, finding["reader"]} for finding in cell["findings"])
    assert "lost own write" in out
