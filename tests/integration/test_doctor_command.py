"""`kvward doctor` as a process: exit codes, both ways to give a command line, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kvward.terms import ExitCode

QUIET = "vllm serve MODEL --uds /run/ward/engine.sock --language-model-only"


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    return subprocess.run(
        [sys.executable, "-m", "kvward", "doctor", *arguments],
        capture_output=True, text=True, timeout=60, check=False, env={**clean, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--behind-gateway", "--vllm", QUIET], ExitCode.NOT_OBSERVED),
        (["--behind-gateway", "--vllm", "--", *QUIET.split()], ExitCode.NOT_OBSERVED),
        (["--vllm", QUIET], ExitCode.VIOLATED),
        (["--behind-gateway", "--vllm", "--host 0.0.0.0"], ExitCode.VIOLATED),
        (["--behind-gateway", "--vllm", "--", "m", "--host", "0.0.0.0"], ExitCode.VIOLATED),
        (["--behind-gateway", "--vllm", f"{QUIET} --trust-remote-code"], ExitCode.INCONCLUSIVE),
        (["--behind-gateway", "--vllm", f"{QUIET} --foo"], ExitCode.INCONCLUSIVE),
        (["--vllm", "--host 'x"], ExitCode.USAGE),
        (["--vllm"], ExitCode.USAGE),
        (["--behind-gatewai", "--vllm", QUIET], ExitCode.USAGE),
        (["--env", "A=1"], ExitCode.USAGE),
        (["--env", "A", "--vllm", QUIET], ExitCode.USAGE),
        ([], ExitCode.NOT_OBSERVED),
    ],
)
def test_exit_code_says_what_was_found(arguments: list[str], code: ExitCode) -> None:
    done = doctor(*arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_finding_is_told_with_why_and_mend() -> None:
    done = doctor("--behind-gateway", "--vllm", f"{QUIET} --prefix-caching-hash-algo xxhash")
    first, why, mend, *_, counts, version = done.stdout.splitlines()
    assert first.split() == ["defeats", "prefix-hash", "--prefix-caching-hash-algo", "xxhash"]
    assert why.strip().startswith("Why:")
    assert mend.strip().startswith("Mend:")
    assert counts == "Findings: 1 defeats, 0 weakens, 0 unknown"
    assert "0.32.0" in version


def test_json_holds_the_same() -> None:
    done = doctor("--json", "--env", "VLLM_SERVER_DEV_MODE=1", "--behind-gateway", "--vllm", QUIET)
    value = json.loads(done.stdout)
    assert done.returncode == ExitCode.INCONCLUSIVE
    assert value["vllm"] == "0.32.0"
    (finding,) = value["findings"]
    assert finding.keys() == {"id", "severity", "setting", "why", "mend"}
    assert (finding["id"], finding["severity"]) == ("development-mode", "weakens")


def test_environment_of_the_process_counts_only_when_asked_and_options_win() -> None:
    arguments = ["--behind-gateway", "--vllm", QUIET]
    on = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    assert doctor(*arguments, **on).returncode == ExitCode.NOT_OBSERVED
    assert doctor("--this-environment", *arguments, **on).returncode == ExitCode.INCONCLUSIVE
    off = ["--this-environment", "--env", "VLLM_ENABLE_RESPONSES_API_STORE=0"]
    assert doctor(*off, *arguments, **on).returncode == ExitCode.NOT_OBSERVED


def test_without_a_command_line_it_says_what_is_installed() -> None:
    assert "cryptography" in doctor().stdout
    value = json.loads(doctor("--json").stdout)
    assert value["versions"].keys() == {"kvward", "python", "cryptography"}
    assert value["missing"]["gateway"] == []
