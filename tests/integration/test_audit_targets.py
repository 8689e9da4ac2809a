"""`kvward audit` on the command line: what it audits, with which keys, within which limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes import FAKES, Fake
from kvward.audit.history import load_history
from kvward.audit.plan import Plan, Route, Tier
from kvward.cli.audit import command
from kvward.cli.main import exit_code_of
from kvward.cli.process import ServerProcess
from kvward.errors import KvwardError
from kvward.terms import ExitCode

pytestmark = pytest.mark.timeout(240)
ENVIRON = {"KEY_A": "ka-secret", "KEY_B": "kb-secret"}
TENANTS = ("--tenant", "a=env:KEY_A", "--tenant", "b=env:KEY_B")


def audit(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvward", "audit", *arguments],
        capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | ENVIRON | (environ or {}),
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "ka-secret" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def refusal(*arguments: str, environ: dict[str, str] | None = None) -> tuple[ExitCode, str]:
    """Run the command in this process; it must refuse before it reaches anything."""
    with pytest.raises(KvwardError) as caught:
        CliRunner(env=ENVIRON | (environ or {})).invoke(
            command, [*arguments], standalone_mode=False, catch_exceptions=False
        )
    error = caught.value
    return exit_code_of(error), f"{error.message} {error.hint or ''}"


@contextmanager
def served(fake: Fake) -> Iterator[str]:
    """Serve a fake in a thread of its own."""
    import asyncio

    ready, ends = threading.Event(), threading.Event()
    url = ""

    async def serve() -> None:
        nonlocal url
        async with fake.serving() as at:
            url = at
            ready.set()
            while not ends.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield url
    finally:
        ends.set()
        thread.join(10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://192.0.2.1", *TENANTS], "--authorised"),
        (["http://127.0.0.1:1", "http://192.0.2.1", *TENANTS], "--authorised"),
        (["http://192.0.2.1", "--authorised", "--tenant", "a=s3cret", "--tenant", "b=env:KEY_B"],
         "--tenant a=env:VARIABLE"),
        (["http://127.0.0.1:1", "http://192.0.2.1", "--authorised", "--tenant", "a=env:KEY_A",
          "--tenant", "b=s3cret"], "--tenant b=env:VARIABLE"),
        (["http://me:s3cret@127.0.0.1:1", *TENANTS], "more than scheme"),
        (["http://127.0.0.1:1?key=s3cret", *TENANTS], "more than scheme"),
        (["http://127.0.0.1:99999999", *TENANTS], "not a URL"),
        (["http://127.0.0.1:1", "http://127.0.0.1:1/", *TENANTS], "each of them once"),
        (["http://127.0.0.1:1", *TENANTS, "--max-cost", "1"], "--price"),
        (["http://127.0.0.1:1", *TENANTS, "--max-rps", "0"], "above zero"),
        (["http://127.0.0.1:1", *TENANTS, "--cache-tier", "disk"], "[flush-device]"),
        (["http://127.0.0.1:1", *TENANTS, "--flush-device", "true"], "--cache-tier"),
        (["http://127.0.0.1:1", *TENANTS, "--preset", "vllm", "--template", __file__],
         "say the same"),
        (["http://127.0.0.1:1", *TENANTS, "--template", __file__], "cannot be read"),
        (["http://127.0.0.1:1", *TENANTS, "--controls", __file__], "cannot be read"),
        (["http://127.0.0.1:1", "--tenant", "a=env:NEWLINE", "--tenant", "b=env:KEY_B"],
         "no header carries"),
    ],
    ids=range(16),
)  # fmt: skip
def test_wrong_use_is_said_without_a_secret(arguments: list[str], words: str) -> None:
    code, said = refusal(*arguments, environ={"NEWLINE": "s3cret\n"})
    assert code == ExitCode.USAGE
    assert words in said
    assert "s3cret" not in said


def test_key_of_a_loopback_address_may_be_written_down() -> None:
    code, said = refusal("http://localhost:9", "--tenant", "a=x-1", "--tenant", "b=x-2")
    assert code == ExitCode.UNREACHABLE
    assert "x-1" not in said


@pytest.mark.parametrize("name", ["vllm", "ollama", "anthropic"])
def test_fake_is_recognised_audited_and_named(name: str, tmp_path: Path) -> None:
    fake = FAKES[name](shared=True)
    with served(fake) as url:
        code, out, err = audit(
            url, *TENANTS, "--channel", "metadata", "--seed", "3", "--out", str(tmp_path / "o")
        )
    assert code == ExitCode.VIOLATED, out + err
    assert f"target    {name} (" in err
    assert f"target    {name} (" in out
    plan, trials = load_history(tmp_path / "o" / "history.jsonl")
    assert plan.preset == name
    assert plan.preset_reason
    assert plan.format_version == 3
    assert plan.prompt_tokens == (5_120 if name == "anthropic" else 512)
    assert all(trial.output_digest for trial in trials)
    kept = "".join(path.read_text() for path in (tmp_path / "o").iterdir())
    assert "ka-secret" not in kept
    assert "kb-secret" not in kept


def test_plan_beyond_the_budget_is_refused_before_its_first_prompt(tmp_path: Path) -> None:
    fake = FAKES["vllm"]()
    with served(fake) as url:
        common = (url, *TENANTS, "--tier", "nightly", "--out", str(tmp_path / "o"))
        code, out, err = audit(*common, "--max-requests", "1500")
        assert (code, out) == (ExitCode.USAGE, "")
        assert "Nothing of it was sent" in err
        assert "--tier smoke fits" in err
        code, out, err = audit(*common, "--max-cost", "0.25", "--price", "2.5,10")
        assert (code, out) == (ExitCode.USAGE, "")
        assert "USD" in err
    assert not fake.asked
    assert not (tmp_path / "o").exists()


def test_content_is_left_out_where_it_cannot_be_read_and_refused_where_it_was_asked_for(
    tmp_path: Path,
) -> None:
    with served(FAKES["vllm"]()) as url:
        common = (url, *TENANTS, "--route", "messages", "--plan-only")
        code, _, err = audit(*common)
        assert code == 0
        assert "content" not in err
        code, _, err = audit(*common, "--channel", "content", "--canary-model")
        assert code == ExitCode.USAGE
        assert "no 20 logprobs" in err
        code, _, err = audit(*common, "--channel", "content")
        assert code == 0
        assert "content" in err
        code, _, err = audit(url, *TENANTS, "--plan-only", "--channel", "differential")
        assert code == ExitCode.USAGE
        assert "for the canary model only" in err
        code, _, err = audit(url, *TENANTS, "--route", "messages", "--preset", "kvward-lab")
        assert code == ExitCode.USAGE
        assert "has no route messages" in err


def test_lab_is_audited_over_both_routes_and_two_addresses(tmp_path: Path) -> None:
    with ServerProcess(["lab", "serve"], log=tmp_path / "lab.log") as server:
        other = server.url.replace("127.0.0.1", "localhost")
        code, out, _ = audit(
            server.url, other, *TENANTS, "--route", "completions", "--route", "chat", "--no-stream",
            "--channel", "metadata", "--max-rps", "500", "--out", str(tmp_path / "o"),
        )  # fmt: skip
    assert code == ExitCode.VIOLATED, out
    assert "at replica 1" in out
    assert f"replica 1 {other}" in out
    plan, trials = load_history(tmp_path / "o" / "history.jsonl")
    assert plan.routes == (Route.COMPLETIONS, Route.CHAT)
    assert plan.replicas == (server.url, other)
    assert not plan.streamed
    assert {trial.route for trial in trials} == set(plan.routes)
    assert {trial.replica for trial in trials} == {0, 1}
    assert not any(trial.error for trial in trials)


def test_content_is_read_from_the_lab_s_chat(tmp_path: Path) -> None:
    with ServerProcess(["lab", "serve"], log=tmp_path / "lab.log") as server:
        code, out, _ = audit(
            server.url, *TENANTS, "--route", "chat", "--channel", "content",
            "--out", str(tmp_path / "o"),
        )  # fmt: skip
    assert code == ExitCode.NOT_OBSERVED, out
    assert "own canary read back: 60 of 60" in out


def test_control_runs_only_when_a_planned_cell_needs_it(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    controls = tmp_path / "controls.toml"
    controls.write_text(
        f'version = 1\n[flush-device]\ncommand = ["touch", "{ran}"]\nempties_in_place = true\n'
    )
    with served(FAKES["vllm"]()) as url:
        common = (url, *TENANTS, "--channel", "metadata", "--controls", str(controls))
        code, out, _ = audit(*common, "--out", str(tmp_path / "x"))
        assert code == ExitCode.NOT_OBSERVED, out
        assert not ran.exists()
        code, out, _ = audit(*common, "--cache-tier", "disk", "--out", str(tmp_path / "y"))
        assert ran.exists()
        assert "lay in the disk tier" in out
        assert "the operator's word" in out
        controls.write_text('version = 1\n[flush-device]\ncommand = ["false"]\n')
        code, out, err = audit(*common, "--cache-tier", "disk", "--out", str(tmp_path / "z"))
    assert (code, out) == (ExitCode.USAGE, "")
    assert "exit code 1" in err


def test_flush_that_nothing_shows_gives_no_verdict(tmp_path: Path) -> None:
    with served(FAKES["vllm"]()) as url:
        code, out, err = audit(
            url, *TENANTS, "--channel", "metadata", "--flush-device", "true",
            "--cache-tier", "disk", "--out", str(tmp_path / "o"),
        )  # fmt: skip
    assert (code, out) == (ExitCode.INCONCLUSIVE, "")
    assert "answered all the while" in err
    assert "empties_in_place" in err
    assert not (tmp_path / "o" / "report.json").exists()


def test_history_of_the_first_format_is_still_read(tmp_path: Path) -> None:
    """As the version before presets wrote it."""
    plan = {
        "url": "http://127.0.0.1:1", "model": "canary", "route": "completions",
        "tenants": ["a", "b"], "tier": "smoke", "seed": 7, "alpha": 0.001, "confidence": 0.95,
        "clients": 4, "prompt_tokens": 512, "run_nonce": "", "cache_tier": "device",
        "sizes": {"content_outputs": 1, "control_outputs": 1, "pairs": 1},
        "cells": [{"scope": "S3", "channel": "metadata", "reuse_expected": False}],
        "tool_version": "0.1.0",
    }  # fmt: skip
    trial = {
        "number": 0, "arm": "prime", "tenant": "a", "conversation": "s3-0", "scope": "S3",
        "pair": 0, "coin": 1, "first": None, "prompt": "probe:512:x", "prompt_words": 512,
        "own_words": [], "ending": "done", "status": 200, "start_ns": 1, "ttft_ns": 2,
        "total_ns": 3, "text": "", "top_logprobs": [], "prompt_tokens": 512,
        "completion_tokens": 1, "cached_tokens": 0, "response_ids": [], "error": None,
    }  # fmt: skip
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(plan) + "\n" + json.dumps(trial) + "\n")
    read, trials = load_history(path)
    assert isinstance(read, Plan)
    assert (read.tier, read.format_version, read.routes) == (Tier.SMOKE, 1, (Route.COMPLETIONS,))
    assert (trials[0].replica, trials[0].num_retries) == (None, 0)
    path.write_text(json.dumps(plan | {"format_version": 99, "surprise": 1}) + "\n")
    with pytest.raises(KvwardError, match="format 99"):
        load_history(path)
