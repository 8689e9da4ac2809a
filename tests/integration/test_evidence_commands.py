"""From an audit to a stranger who verifies it: ledger, bundle, verify, and what was changed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from audit_commands import audit
from kvward.cli.main import main
from kvward.cli.process import free_port
from kvward.ledger.bundle.reading import load_bundle
from kvward.ledger.bundle.writing import save_bundle, with_manifest
from kvward.terms import ExitCode
from servers import guarded_lab

pytestmark = pytest.mark.timeout(240)
CHANNEL = ("--channel", "metadata")


class Evidence(NamedTuple):
    """What one audit of a leaking lab left: its folder, the log, its key, and the bundle."""

    audit: Path
    log: Path
    key: str
    bundle: Path


def kvward(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; its start would take longer than what it does."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in "oe"]
    code: object = None
    with (
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["kvward", *arguments])
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    assert isinstance(code, int)
    return code, out, err


def begin(log: Path) -> str:
    code, out, err = kvward("ledger", "init", str(log), "--origin", "lab.example/1")
    assert code == 0, err
    return out.strip()


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    root = tmp_path_factory.mktemp("evidence")
    log, out, bundle = root / "log", root / "audit", root / "evidence.tar"
    key = begin(log)
    with guarded_lab(root / "lab", "--edge-only", "--defect", "scope-missing") as (url, keys):
        code, _, err = audit(url, keys, out, *CHANNEL, "--ledger", str(log))
    assert code == ExitCode.VIOLATED, err
    code, _, err = kvward("ledger", "bundle", str(bundle), "--log", str(log), "--audit", str(out))
    assert code == 0, err
    return Evidence(out, log, key, bundle)


def test_bundle_verifies_with_the_key_alone(evidence: Evidence) -> None:
    code, out, _ = kvward("verify", str(evidence.bundle), "--key", evidence.key)
    assert code == 0, out
    assert "The plan was logged before the first request" in out
    assert "It verifies." in out
    assert "metadata S3      VIOLATED" in out
    assert not {"safe", "secure", "no leak"} & set(out.lower().replace(",", " ").split())


def test_without_a_key_nobody_is_believed(evidence: Evidence) -> None:
    code, out, _ = kvward("verify", str(evidence.bundle))
    assert code == ExitCode.INCONCLUSIVE
    assert "nobody's signature was checked" in out


def test_another_key_is_not_believed(evidence: Evidence, tmp_path: Path) -> None:
    key = begin(tmp_path / "log")
    code, out, _ = kvward("verify", str(evidence.bundle), "--key", key, "--json")
    assert code == ExitCode.EVIDENCE
    assert json.loads(out)["standing"] == "fails"


def test_folder_and_archive_are_the_same_bundle(evidence: Evidence, tmp_path: Path) -> None:
    key_file = tmp_path / "trusted.txt"
    key_file.write_text(f"{evidence.key}\n")
    folder = tmp_path / "folder"
    save_bundle(load_bundle(evidence.bundle), folder)
    code, out, _ = kvward("verify", str(folder), "--key-file", str(key_file), "--json")
    assert code == 0
    value = json.loads(out)
    assert {step["standing"] for step in value["steps"]} == {"holds"}
    assert value["plans_without_result"] == []


def test_one_changed_observation_is_found_though_all_digests_are_mended(
    evidence: Evidence, tmp_path: Path
) -> None:
    files = load_bundle(evidence.bundle)
    name = next(name for name in files if name.endswith("history.jsonl"))
    lines = files[name].splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"probe-primed"' in line and b'"S3"' in line)
    trial = json.loads(lines[at])
    trial["cached_tokens"] = 0
    lines[at] = json.dumps(trial, separators=(",", ":")).encode() + b"\n"
    files[name] = b"".join(lines)
    save_bundle(with_manifest(files), tmp_path / "changed.tar")
    code, out, _ = kvward("verify", str(tmp_path / "changed.tar"), "--key", evidence.key)
    assert code == ExitCode.EVIDENCE
    assert "the history gives" in out
    files[name] = files[name][:-1]
    (tmp_path / "torn.tar").write_bytes(evidence.bundle.read_bytes()[:-1])
    code, _, err = kvward("verify", str(tmp_path / "torn.tar"), "--key", evidence.key)
    assert code == ExitCode.EVIDENCE
    assert "archive" in err


def test_plan_that_was_logged_late_is_said_to_be(evidence: Evidence, tmp_path: Path) -> None:
    log, bundle = tmp_path / "log", tmp_path / "late"
    key = begin(log)
    copied = tmp_path / "audit"
    shutil.copytree(evidence.audit, copied)
    record = ("ledger", "record", "--log", str(log), "--audit", str(copied))
    assert kvward(*record)[0] == 0
    again = kvward(*record, "--json")
    first = json.loads(again[1])["size"]
    assert json.loads(kvward(*record, "--json")[1])["size"] == first
    code, _, err = kvward(
        "ledger", "bundle", str(bundle), "--log", str(log), "--audit", str(copied)
    )
    assert (code, "logged after the audit" in err) == (0, True)
    code, out, _ = kvward("verify", str(bundle), "--key", key)
    assert code == ExitCode.INCONCLUSIVE
    assert "logged after the audit had begun" in out


def test_report_that_is_not_its_history_s_is_not_recorded(
    evidence: Evidence, tmp_path: Path
) -> None:
    log, copied = tmp_path / "log", tmp_path / "audit"
    begin(log)
    shutil.copytree(evidence.audit, copied)
    report = copied / "report.json"
    report.write_text(report.read_text().replace("VIOLATED", "NOT_OBSERVED"))
    code, _, err = kvward("ledger", "record", "--log", str(log), "--audit", str(copied))
    assert code == ExitCode.EVIDENCE
    assert "not what its history gives" in err


def test_bundle_shows_that_the_log_continues_what_was_known(
    evidence: Evidence, tmp_path: Path
) -> None:
    known = tmp_path / "known.txt"
    known.write_text(kvward("ledger", "head", str(evidence.log))[1])
    verify = ("verify", str(evidence.bundle), "--key", evidence.key, "--known", str(known))
    assert kvward(*verify)[0] == 0
    other = tmp_path / "other"
    shutil.copytree(evidence.log, other)
    code, _, err = kvward(
        "ledger", "bundle", str(tmp_path / "since"), "--log", str(evidence.log),
        "--audit", str(evidence.audit), "--since", str(known), "--key", evidence.key,
    )  # fmt: skip
    assert code == 0, err
    # A log that was begun anew under the same name is another one.
    begin(tmp_path / "fresh")
    fresh = kvward("ledger", "head", str(tmp_path / "fresh"))[1]
    known.write_text(fresh)
    assert kvward(*verify)[0] == ExitCode.EVIDENCE


def test_audit_that_was_ended_leaves_a_plan_without_result(
    evidence: Evidence, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    shutil.copytree(evidence.log, log)
    shutil.copy(evidence.log.with_name("log.key"), tmp_path / "log.key")
    with guarded_lab(tmp_path / "lab", "--edge-only") as (url, keys):
        command = [
            sys.executable, "-m", "kvward", "audit", url, *CHANNEL, "--ledger", str(log),
            "--out", str(tmp_path / "out"), "--max-rps", "2",
            *(part for name in keys for part in ("--tenant", f"{name}=env:KEY_{name}")),
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {f"KEY_{name}": key for name, key in keys.items()},
        )  # fmt: skip
        history = tmp_path / "out" / "history.jsonl"
        while process.poll() is None and not (history.exists() and history.stat().st_size):
            pass
        process.kill()
        process.wait()
    code, _, err = kvward(
        "ledger", "bundle", str(tmp_path / "b.tar"), "--log", str(log),
        "--audit", str(evidence.audit),
    )  # fmt: skip
    assert code == 0, err
    code, out, _ = kvward("verify", str(tmp_path / "b.tar"), "--key", evidence.key, "--json")
    assert code == 0
    assert len(json.loads(out)["plans_without_result"]) == 1


def test_unreachable_target_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    begin(tmp_path / "log")
    keys = {"a": "first-key", "b": "second-key"}
    url = f"http://127.0.0.1:{free_port()}"
    code, _, _ = audit(url, keys, tmp_path / "out", "--ledger", str(tmp_path / "log"))
    assert code == ExitCode.UNREACHABLE
    assert json.loads(kvward("ledger", "head", str(tmp_path / "log"), "--json")[1])["size"] == 0
