"""The churn client against the lab: clean behind the ward, caught where blocks change hands."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from attacks.churn.client import ChurnClient
from attacks.churn.plan import Leave, Moment, Move, Order
from attacks.churn.prompts import ChurnPrompt

from kvward.audit.canary.codebook import Codebook
from kvward.audit.exchange import Ending, Reply
from kvward.cli.process import ServerProcess
from servers import running, write_policy

ROOT = Path(__file__).parents[2]
TENANTS = ("a", "b", "c")
BARE_KEYS = {name: f"key-of-{name}" for name in TENANTS}
SESSION = Codebook(seed=1).session(tenant="a", conversation="c")
PROMPT = ChurnPrompt(words=SESSION.canary[:3], ranking=SESSION.canary)
CHUNK = b'data: {"id":"x","choices":[{"index":0,"text":" acorn"}]}\n\n'


def churn(
    server: ServerProcess, keys: dict[str, str], folder: Path, *arguments: str
) -> tuple[int, dict[str, Any]]:
    """Run the command for about ten seconds; returns its exit code and its result."""
    path = folder / "churn.json"
    command = [sys.executable, "-m", "attacks.churn", server.url, "--json", str(path)]
    command += [part for name, key in keys.items() for part in ("--tenant", f"{name}={key}")]
    command += ["--clients", "12", "--block-tokens", "16", "--engine-pid", str(server.pid)]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, timeout=100, check=False
    )
    assert path.exists(), done.stderr.decode()
    return done.returncode, json.loads(path.read_text())


def test_behind_the_ward_nothing_is_found_and_every_control_is_met(tmp_path: Path) -> None:
    keys, policy = write_policy(tmp_path, tenants=TENANTS)
    arguments = ["serve", "--config", str(policy), "--blocks", "128"]
    with ServerProcess(arguments, log=tmp_path / "serve.log") as server:
        code, result = churn(server, keys, tmp_path, "--seconds", "9", "--max-tokens", "600")
    assert result["findings"] == []
    assert [control["name"] for control in result["controls"] if not control["is_met"]] == []
    assert (code, result["outcome"]) == (0, "NOT_OBSERVED")
    assert result["counts"]["failed"] == result["counts"]["refused"] == 0
    assert result["rss"]["samples"] >= 5
    assert "key" not in json.dumps(result["options"])


@pytest.mark.parametrize("defect", ["reuse-in-flight", "early-publish"])
def test_an_engine_whose_blocks_change_hands_is_found(tmp_path: Path, defect: str) -> None:
    arguments = ["lab", "serve", "--blocks", "96", "--defect", defect]
    with ServerProcess(arguments, log=tmp_path / "lab.log") as server:
        bounds = ["--seconds", "75", "--max-tokens", "600", "--stop-early"]
        code, result = churn(server, BARE_KEYS, tmp_path, *bounds)
    assert (code, result["outcome"]) == (1, "VIOLATED")
    assert {finding["kind"] for finding in result["findings"]} <= {
        "foreign-words",
        "own-words-missing",
        "answer-differs",
    }


def test_without_reuse_the_outcome_is_inconclusive(tmp_path: Path) -> None:
    arguments = ["lab", "serve", "--no-prefix-cache"]
    with ServerProcess(arguments, log=tmp_path / "lab.log") as server:
        code, result = churn(server, BARE_KEYS, tmp_path, "--seconds", "5", "--max-tokens", "100")
    assert (code, result["outcome"]) == (2, "INCONCLUSIVE")
    (unmet, *_) = [control["name"] for control in result["controls"] if not control["is_met"]]
    assert unmet == "cached tokens reported by usage"


def test_a_pool_that_is_tight_shows_preemptions(tmp_path: Path) -> None:
    arguments = ["lab", "serve", "--blocks", "40"]
    with ServerProcess(arguments, log=tmp_path / "lab.log") as server:
        code, result = churn(
            server,
            BARE_KEYS,
            tmp_path,
            "--seconds",
            "8",
            "--max-tokens",
            "120",
            "--answer-tokens",
            "200",
            "--metrics-url",
            f"{server.url}/health",
        )
    assert result["findings"] == []
    assert result["engine"]["preemptions"] > 0
    assert code == 0


def test_an_engine_that_dies_under_the_load_is_found(tmp_path: Path) -> None:
    with ServerProcess(["lab", "serve"], log=tmp_path / "lab.log") as server:
        path = tmp_path / "churn.json"
        command = [sys.executable, "-m", "attacks.churn", server.url, "--json", str(path)]
        command += [part for n, key in BARE_KEYS.items() for part in ("--tenant", f"{n}={key}")]
        command += ["--clients", "4", "--seconds", "30", "--engine-pid", str(server.pid)]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as client:
            assert client.stderr is not None
            client.stderr.readline()  # its first line of progress: the load runs
            server.stop()
            client.stderr.read()
            assert client.wait(timeout=60) == 1
    result = json.loads(path.read_text())
    assert result["findings_by_kind"]["engine-died"] == 1


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Stage:
    """A server that begins a stream, sends `chunks` parts, then does as `then` says."""

    def __init__(self, chunks: int, then: str, *, status: int = 200) -> None:
        self.chunks, self.then, self.status = chunks, then, status
        self.left = asyncio.Event()
        self.bodies: list[bytes] = []

    async def __call__(self, asgi_scope: Message, receive: Receive, send: Send) -> None:
        self.bodies.append((await receive())["body"])
        if self.chunks or self.then == "end":
            await send({"type": "http.response.start", "status": self.status, "headers": []})
        for _ in range(self.chunks):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        if self.then == "end":
            await send({"type": "http.response.body", "body": b""})
            return
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


def order(*, leave: Leave | None = None) -> Order:
    return Order(
        move=Move.CANCEL, session=SESSION, prompt=PROMPT, max_tokens=8, streams=True, leave=leave
    )


async def send(stage: Stage, one: Order, *, timeout_s: float = 30.0) -> Reply:
    with running(stage, lifespan="off") as url:
        async with ChurnClient(url, {"a": "k"}, model="m", timeout_s=timeout_s) as client:
            reply = await client.send(one)
            for _ in range(200):
                if stage.then == "end" or stage.left.is_set():
                    break
                await asyncio.sleep(0.02)
    return reply


@pytest.mark.parametrize("moment", [Moment.AT_ONCE, Moment.PREFILL])
async def test_a_client_leaves_before_any_byte_and_the_server_has_the_request(
    moment: Moment,
) -> None:
    stage = Stage(0, "wait")
    reply = await send(stage, order(leave=Leave(moment=moment, patience=1.0, parts=1)))
    assert reply.ending is Ending.CANCELLED
    assert reply.status is None
    assert SESSION.canary[0].encode() in stage.bodies[0]
    assert stage.left.is_set()


async def test_a_client_leaves_mid_stream_and_keeps_what_it_read() -> None:
    stage = Stage(5, "wait")
    leave = Leave(moment=Moment.MID_STREAM, patience=0.0, parts=3)
    reply = await send(stage, order(leave=leave))
    assert reply.ending is Ending.CANCELLED
    assert reply.text == " acorn" * 3
    assert stage.left.is_set()


async def test_a_server_that_does_not_go_on_is_a_hang() -> None:
    reply = await send(Stage(2, "wait"), order(), timeout_s=0.5)
    assert (reply.ending, reply.error) == (Ending.FAILED, "timeout")


async def test_a_stream_that_breaks_off_and_a_status_are_failures() -> None:
    broken = await send(Stage(2, "end"), order())
    assert (broken.ending, broken.error) == (Ending.FAILED, "stream ended early")
    refused = await send(Stage(0, "end", status=503), order())
    assert (refused.ending, refused.error, refused.status) == (Ending.FAILED, "HTTP 503", 503)
