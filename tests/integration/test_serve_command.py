"""`kvward serve`, `gateway`, `lab` and `demo` as a new user meets them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from kvward.cli.process import ServerProcess, free_port
from kvward.lab.defects import DEFECTS
from kvward.terms import ExitCode
from servers import write_policy

pytestmark = pytest.mark.timeout(240)


def kvward(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvward", *arguments],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def ask(url: str, key: str, **body: object) -> dict[str, object]:
    content = json.dumps({"model": "canary", "max_tokens": 1, **body}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with urlopen(Request(url + "/v1/completions", data=content, headers=headers)) as response:
        value: dict[str, object] = json.loads(response.read())
        return value


def test_help_names_every_command_and_exit_code() -> None:
    done = kvward("--help")
    assert done.returncode == 0
    for word in ("audit", "demo", "serve", "gateway", "lab", "canary-model", "2 inconclusive"):
        assert word in " ".join(done.stdout.split())
    assert kvward("--version").stdout.startswith("kvward")
    wrong = kvward("nothing")
    assert wrong.returncode == ExitCode.USAGE
    assert "nothing" in wrong.stderr


def test_init_prints_keys_once_and_writes_private_files(tmp_path: Path) -> None:
    folder = tmp_path / "gate"
    done = kvward("gateway", "init", str(folder), "--tenant", "a", "--tenant", "b",
                  "--level", "conversation")  # fmt: skip
    assert done.returncode == 0
    keys = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert set(keys) == {"a", "b"}
    for path in folder.iterdir():
        assert not any(key in path.read_text() for key in keys.values())
    assert (folder / "root.key").stat().st_mode & 0o777 == 0o600
    again = kvward("gateway", "init", str(folder), "--tenant", "a", "--level", "tenant")
    assert again.returncode == ExitCode.USAGE
    assert kvward("gateway", "init", str(tmp_path / "x"), "--tenant", "a").returncode == 3
    assert "key_sha256" in kvward("gateway", "key").stdout


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda folder: (folder / "policy.toml").unlink(), "cannot be read"),
        (lambda folder: (folder / "policy.toml").write_text("= 1"), "not TOML"),
        (lambda folder: (folder / "policy.toml").write_text("a = 1"), "policy.toml"),
        (lambda folder: (folder / "root.key").chmod(0o644), "open to group or others"),
        (lambda folder: (folder / "root.key").unlink(), "root.key"),
    ],
    ids=["missing", "not TOML", "wrong", "key open", "key missing"],
)
def test_configuration_that_is_wrong_is_refused(
    tmp_path: Path, break_it: object, words: str
) -> None:
    write_policy(tmp_path, upstream="http://127.0.0.1:1")
    break_it(tmp_path)  # type: ignore[operator]
    done = kvward("serve", "--config", str(tmp_path / "policy.toml"), "--port", str(free_port()))
    assert done.returncode == ExitCode.USAGE
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for command in (["lab", "serve"], ["serve"]):
            done = kvward(*command, "--port", port)
            assert done.returncode == ExitCode.USAGE
            assert f"127.0.0.1:{port}" in done.stderr
            assert "--port" in done.stderr


def test_model_folder_without_weights_and_unknown_defect_are_said(tmp_path: Path) -> None:
    kvward("canary-model", str(tmp_path / "model"))
    (tmp_path / "model" / "model.safetensors").unlink()
    for command in ("serve", "lab"):
        arguments = [command] if command == "serve" else ["lab", "serve"]
        done = kvward(*arguments, "--model", str(tmp_path / "model"), "--port", str(free_port()))
        assert done.returncode == ExitCode.USAGE
        assert "no weights" in done.stderr
    done = kvward("lab", "serve", "--defect", "nothing", "--port", str(free_port()))
    assert done.returncode == ExitCode.USAGE
    assert "scope-missing" in done.stderr
    rows = json.loads(kvward("lab", "defects", "--json").stdout)
    assert {row["name"]: row["class"] for row in rows} == {
        name: defect.failure_class for name, defect in DEFECTS.items()
    }


def test_server_without_a_policy_gives_a_key_and_shares_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ServerProcess(["serve"], log=log) as server:
        text = log.read_text()
        key = text.split("API key of this run: ")[1].split()[0]
        assert "no request shares" in text
        for _ in range(2):
            usage = ask(server.url, key, prompt="acorn " * 40)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0  # type: ignore[index]


@contextlib.contextmanager
def serving(log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvward", "serve", "--port", str(free_port()), *options],
            stdout=subprocess.DEVNULL, stderr=sink,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(log: Path, words: str) -> str:
    deadline = time.monotonic() + 60
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.005)
    return log.read_text()


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_the_server_leaves_nothing_behind(tmp_path: Path, told: int) -> None:
    with serving(tmp_path / "log", "--edge-only") as process:
        text = wait_for(tmp_path / "log", "kvward guards")
        socket_path = Path(text.split("unix:")[1].split()[0])
        assert socket_path.exists()
        process.send_signal(told)
        assert process.wait(timeout=40) == 0
        assert not socket_path.parent.exists()


def test_told_to_stop_before_it_listens_the_server_ends_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with serving(tmp_path / "log") as process:
        wait_for(tmp_path / "log", "Starting the lab engine")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=40) == 0
    assert "kvward guards" not in (tmp_path / "log").read_text()
    assert [*(tmp_path / "tmp").glob("kvward-*")] == []


def test_gateway_in_front_of_another_engine_reaches_it(tmp_path: Path) -> None:
    keys, policy = write_policy(tmp_path)
    with (
        ServerProcess(["lab", "serve"], log=tmp_path / "lab.log") as engine,
        ServerProcess(
            ["serve", "--config", str(policy), "--upstream", engine.url], log=tmp_path / "gw.log"
        ) as gateway,
    ):
        answer = ask(gateway.url, keys["a"], prompt="acorn zebra acorn", temperature=0)
        assert answer["choices"][0]["text"] == " acorn"  # type: ignore[index]


def test_demo_shows_the_leak_and_the_ward(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = kvward("demo", "--out", str(out), "--seed", "5", timeout=200)
    assert done.returncode == 0, done.stdout
    assert "Leaking: VIOLATED" in done.stdout
    assert "content S3   VIOLATED" in done.stdout
    assert "Behind the ward: none in" in done.stdout
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 10  # five plots for each of two audits
    for name in ("leaking", "warded"):
        assert json.loads((out / name / "report.json").read_text())["verdicts"]
        assert (out / name / "history.jsonl").stat().st_size > 100_000
