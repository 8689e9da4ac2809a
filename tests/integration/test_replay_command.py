"""`kvward replay`: a finding that is still there, one that was mended, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from audit_reports import leaking_report
from kvward.cli.process import free_port
from kvward.terms import ExitCode
from servers import guarded_lab

pytestmark = pytest.mark.timeout(240)
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/spec/audit-report-v1.schema.json").read_text()
)


def kvward(*arguments: str, keys: dict[str, str], environ: bool = True) -> tuple[int, str, str]:
    given = {f"KEY_{name.upper()}": key for name, key in keys.items()}
    tenants = [
        part
        for name, key in keys.items()
        for part in ("--tenant", f"{name}=env:KEY_{name.upper()}" if environ else f"{name}={key}")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kvward", *arguments, *tenants],
        capture_output=True, text=True, timeout=200, check=False, env=os.environ | given,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    for key in keys.values():
        assert key not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def ids(report: Path, cell: str) -> list[str]:
    value = json.loads(report.read_text())
    return [f["id"] for v in value["verdicts"] for f in v["findings"] if f["id"].startswith(cell)]


def test_finding_reproduces_where_it_was_and_not_where_it_was_mended(tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.json"
    with guarded_lab(tmp_path / "lab", "--edge-only", "--defect", "scope-missing") as (url, keys):
        code, _, _ = kvward(
            "audit", url, "--channel", "metadata", "--out", str(report.parent), keys=keys
        )
        assert code == ExitCode.VIOLATED
        name = ids(report, "metadata-S3")[3]
        code, out, err = kvward(
            "replay", name, "--report", str(report), "--out", str(tmp_path / "again"), "--json",
            keys=keys,
        )  # fmt: skip
        assert code == ExitCode.VIOLATED, err
        assert "It reproduces" in err
        assert "Again between the same two tenants." in err
        value = json.loads(out)
        Draft202012Validator(SCHEMA).validate(value)
        assert {f"{v['channel']}-{v['scope']}" for v in value["verdicts"]} == {
            "metadata-S0", "metadata-S3",
        }  # fmt: skip
        assert name in value["title"]
        # Its own report can be replayed like any other.
        again = tmp_path / "again" / "report.json"
        code, _, err = kvward(
            "replay", "metadata-S3", "--report", str(again), "--out", str(tmp_path / "third"),
            keys=keys,
        )  # fmt: skip
        assert code == ExitCode.VIOLATED, err
    with guarded_lab(tmp_path / "mended", "--edge-only") as (url, keys):
        code, out, _ = kvward(
            "replay", name, "--report", str(report), "--base-url", url,
            "--out", str(tmp_path / "mended-out"), keys=keys,
        )  # fmt: skip
        assert code == ExitCode.NOT_OBSERVED, out
        assert "It did not reproduce; ≤ " in out
    with guarded_lab(tmp_path / "off", "--edge-only", "--no-prefix-cache") as (url, keys):
        code, out, _ = kvward(
            "replay", name, "--report", str(report), "--base-url", url,
            "--out", str(tmp_path / "off-out"), keys=keys,
        )  # fmt: skip
        assert code == ExitCode.INCONCLUSIVE, out
        assert "cannot be told" in out


def test_race_under_load_is_replayed_with_its_load(tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.json"
    with guarded_lab(tmp_path / "lab", "--edge-only", "--defect", "reuse-in-flight") as (url, keys):
        code, _, _ = kvward(
            "audit", url, "--channel", "content", "--seed", "11", "--out", str(report.parent),
            keys=keys,
        )  # fmt: skip
        assert code == ExitCode.VIOLATED
        code, out, _ = kvward(
            "replay", ids(report, "content-")[0], "--report", str(report),
            "--out", str(tmp_path / "again"), keys=keys,
        )  # fmt: skip
    assert code == ExitCode.VIOLATED, out


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.json"
    path.write_bytes(leaking_report().to_json())
    return path


KEYS = {"a": "first-secret", "b": "second-secret"}


def test_unreachable_target_and_wrong_use_have_their_codes(
    report_file: Path, tmp_path: Path
) -> None:
    name = ids(report_file, "metadata-S3")[0]
    given = ("--report", str(report_file), "--out", str(tmp_path / "out"))
    url = f"http://127.0.0.1:{free_port()}"
    code, _, _ = kvward("replay", name, *given, "--base-url", url, keys=KEYS)
    assert code == ExitCode.UNREACHABLE
    elsewhere = ("--base-url", "http://192.0.2.1")
    code, _, err = kvward("replay", name, *given, *elsewhere, keys=KEYS)
    assert (code, "--authorised" in err) == (ExitCode.USAGE, True)
    code, _, err = kvward(
        "replay", name, *given, *elsewhere, "--authorised", keys=KEYS, environ=False
    )
    assert (code, "command line" in err) == (ExitCode.USAGE, True)
    code, _, err = kvward("replay", name, *given, keys={"a": "first-secret", "c": "third-secret"})
    assert (code, "not those of the report" in err) == (ExitCode.USAGE, True)
    code, _, err = kvward("replay", "metadata-S3-7777777", *given, keys=KEYS)
    assert (code, "no finding" in err) == (ExitCode.USAGE, True)
    assert not (tmp_path / "out").exists()


def test_address_that_was_changed_in_a_report_is_never_asked(
    report_file: Path, tmp_path: Path
) -> None:
    value = json.loads(report_file.read_text())
    value["plan"]["url"] = "http://127.0.0.1:9"
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(value))
    code, _, err = kvward("replay", "metadata-S3", "--report", str(changed), keys=KEYS)
    assert code == ExitCode.EVIDENCE
    assert "changed" in err
