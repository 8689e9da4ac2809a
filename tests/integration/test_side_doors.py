"""Lists of cached state and saved states, against the lab with and without the defects there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit_commands import audit, cells
from kvward.audit.history import Arm, load_history
from kvward.cli.process import ServerProcess
from kvward.terms import ExitCode
from servers import guarded_lab

pytestmark = pytest.mark.timeout(240)
KEYS = {"a": "door-key-1", "b": "door-key-2"}
SLOTS = ["lab", "serve", "--scope-by-key", "--no-prefix-cache", "--slots", "4"]


def test_list_of_slots_that_shows_everybodys_prompts_is_found(tmp_path: Path) -> None:
    arguments = [*SLOTS, "--defect", "slots-reveal-prompts"]
    with ServerProcess(arguments, log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", "--channel", "content")
    assert code == ExitCode.VIOLATED, out
    found = cells(tmp_path / "out")
    assert found == {
        "content S0": "NOT_OBSERVED",
        "content S1": "NOT_OBSERVED",
        "content S2": "NOT_OBSERVED",
        "content S3": "VIOLATED",
    }
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (cell,) = [v for v in report["verdicts"] if v["outcome"] == "VIOLATED"]
    assert {(f["reader"][0], f["source"][0]) for f in cell["findings"]} == {("a", "b"), ("b", "a")}
    _, trials = load_history(tmp_path / "out" / "history.jsonl")
    doors = {trial.number for trial in trials if trial.arm is Arm.DOOR}
    assert {finding["trial"] for finding in cell["findings"]} <= doors
    assert "list of what is cached" in out


def test_list_of_own_slots_is_no_finding(tmp_path: Path) -> None:
    with ServerProcess(SLOTS, log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", "--channel", "content")
    assert code == ExitCode.NOT_OBSERVED, out
    plan, trials = load_history(tmp_path / "out" / "history.jsonl")
    doors = [trial for trial in trials if trial.arm is Arm.DOOR]
    assert len(doors) == plan.num_door_requests
    assert any(trial.listed for trial in doors), "the list is read, and shows own words"


def test_gateway_without_side_doors_is_asked_once_by_each_tenant(tmp_path: Path) -> None:
    with guarded_lab(tmp_path / "lab", "--edge-only") as (url, keys):
        options = ("--preset", "kvward-lab", "--channel", "content")
        code, out, _ = audit(url, keys, tmp_path / "out", *options)
    assert code == ExitCode.NOT_OBSERVED, out
    _, trials = load_history(tmp_path / "out" / "history.jsonl")
    doors = [trial for trial in trials if trial.arm is Arm.DOOR]
    assert [(trial.tenant, trial.status) for trial in doors] == [("a", 404), ("b", 404)]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["num_failed"] == 0


def test_saved_state_that_is_put_back_for_anybody_is_found(tmp_path: Path) -> None:
    arguments = [*SLOTS, "--defect", "slot-state-unverified"]
    with ServerProcess(arguments, log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", "--channel", "metadata")
    assert code == ExitCode.VIOLATED, out
    assert cells(tmp_path / "out") == {
        "metadata S0": "NOT_OBSERVED",
        "metadata S3": "NOT_OBSERVED",
        "metadata S5": "VIOLATED",
    }
    plan, trials = load_history(tmp_path / "out" / "history.jsonl")
    restored = {trial.pair for trial in trials if trial.arm is Arm.RESTORE and trial.status == 200}
    assert len(restored) == plan.sizes.pairs // 2
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (cell,) = [v for v in report["verdicts"] if v["outcome"] == "VIOLATED"]
    pairs = {trial.number: trial.pair for trial in trials}
    assert {pairs[finding["trial"]] for finding in cell["findings"]} <= restored
    assert len(cell["findings"]) > plan.sizes.pairs // 4


def test_saved_state_that_is_refused_is_no_finding(tmp_path: Path) -> None:
    with ServerProcess(SLOTS, log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", "--channel", "metadata")
    assert code == ExitCode.NOT_OBSERVED, out
    plan, trials = load_history(tmp_path / "out" / "history.jsonl")
    restores = [trial for trial in trials if trial.arm is Arm.RESTORE]
    assert len(restores) == plan.sizes.pairs // 2
    assert {trial.status for trial in restores} == {400}


def test_engine_without_slots_is_audited_as_ever(tmp_path: Path) -> None:
    arguments = ["lab", "serve", "--scope-by-key"]
    with ServerProcess(arguments, log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", "--channel", "metadata")
    assert code == ExitCode.NOT_OBSERVED, out
    _, trials = load_history(tmp_path / "out" / "history.jsonl")
    assert [trial.status for trial in trials if trial.arm is Arm.SAVE] == [400]
    assert not [trial for trial in trials if trial.arm is Arm.RESTORE]


@pytest.mark.parametrize("planted", [False, True])
def test_flood_that_evicts_what_was_promised_is_found(tmp_path: Path, planted: bool) -> None:
    arguments = ["lab", "serve", "--scope-by-key", "--blocks", "256", "--scope-quota", "64"]
    if planted:
        arguments += ["--defect", "quota-ignored"]
    options = ("--channel", "metadata", "--protected-tokens", "1024", "--prompt-tokens", "256")
    with ServerProcess(arguments, log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", *options)
    found = cells(tmp_path / "out")
    assert found == {
        "metadata S0": "NOT_OBSERVED",
        "metadata S3": "NOT_OBSERVED",
        "metadata S5": "NOT_OBSERVED",
        "metadata S8": "VIOLATED" if planted else "NOT_OBSERVED",
    }
    assert code == (ExitCode.VIOLATED if planted else ExitCode.NOT_OBSERVED), out
    assert not planted or "after another tenant's flood" in out


def test_flood_that_presses_on_nothing_is_inconclusive(tmp_path: Path) -> None:
    arguments = ["lab", "serve", "--scope-by-key", "--blocks", "4096"]
    options = ("--channel", "metadata", "--protected-tokens", "512", "--prompt-tokens", "256",
               "--flood-tokens", "512")  # fmt: skip
    with ServerProcess(arguments, log=tmp_path / "lab.log") as server:
        code, out, _ = audit(server.url, KEYS, tmp_path / "out", *options)
    assert cells(tmp_path / "out")["metadata S8"] == "INCONCLUSIVE"
    assert code == ExitCode.INCONCLUSIVE
    assert "--flood-tokens" in out
