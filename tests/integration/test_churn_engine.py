"""The churn command against a made-up engine that answers well, and is wrong in other ways."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from attacks.churn.__main__ import main

from kvward.audit.canary.words import WORDS
from servers import running

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class MadeUpEngine:
    """Answers from the prompt alone, and tells metrics.

    Args:
        leaked: Share of the pool that stays held after the load.
        stale: Gauges are renewed only with an answered request, as in engines that write them
            down in their steps; until then they tell of a busy engine.
        fails: Every so many requests are answered with HTTP 500.
    """

    def __init__(self, *, leaked: float = 0.0, stale: bool = False, fails: int = 0) -> None:
        self.leaked, self.stale, self.fails = leaked, stale, fails
        self.requests = self.answered = self.told = 0

    async def __call__(self, asgi_scope: Message, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")
        if asgi_scope["path"] == "/v1/models":
            await whole(send, json.dumps({"data": [{"id": "made-up"}]}))
        elif asgi_scope["path"] == "/metrics":
            await whole(send, self.metrics())
        else:
            self.requests += 1
            if self.fails and self.requests % self.fails == 0:
                await whole(send, "{}", status=500)
            else:
                await self.answer(json.loads(body), send)

    def metrics(self) -> str:
        new, self.told = self.answered > self.told, self.answered
        usage = 0.5 if self.stale and not new else self.leaked
        return (
            f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}\n'
            "vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n"
            f"vllm:num_preemptions_total {self.requests}.0\n"
        )

    async def answer(self, request: dict[str, Any], send: Send) -> None:
        words = request["prompt"].split()
        counts = Counter(words).most_common()
        shown = {word: -float(i) for i, (word, _) in enumerate(counts)}
        absent = [word for word in WORDS if word not in shown][: 20 - len(shown)]
        top = shown | dict.fromkeys(absent, -90.0)
        choice = {"text": " " + counts[0][0], "logprobs": {"top_logprobs": [top]}}
        num = request["max_tokens"]
        usage = {
            "prompt_tokens": len(words),
            "completion_tokens": num,
            "prompt_tokens_details": {"cached_tokens": 16},
        }
        await asyncio.sleep(0.02)
        if not request["stream"]:
            choice = {"text": choice["text"] * num, "logprobs": {"top_logprobs": [top] * num}}
            await whole(send, json.dumps({"choices": [choice], "usage": usage}))
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for chunk in [{"choices": [choice]}] * num + [{"choices": [], "usage": usage}]:
                await part(send, json.dumps(chunk))
                await asyncio.sleep(0.002)
            await part(send, "[DONE]")
            await send({"type": "http.response.body", "body": b""})
        self.answered += 1


async def whole(send: Send, text: str, *, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": text.encode()})


async def part(send: Send, text: str) -> None:
    body = f"data: {text}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})


def churn(engine: MadeUpEngine, folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    path = folder / "result.json"
    with running(engine, lifespan="off") as url:
        code = main(
            [
                url,
                *("--tenant", "a=one", "--tenant", "b=two", "--clients", "6"),
                *("--seconds", "20", "--requests", "250", "--max-tokens", "64"),
                *("--metrics-url", f"{url}/metrics", "--idle-within", "3"),
                *("--json", str(path), *arguments),
            ]
        )
    return code, json.loads(path.read_text())


def test_an_engine_without_fault_is_clean(tmp_path: Path) -> None:
    code, result = churn(MadeUpEngine(), tmp_path)
    assert (code, result["findings"]) == (0, [])
    assert result["engine"]["after"]["kv_usage_ratio"] == 0
    assert result["counts"]["requests"] == 250
    assert result["options"]["reads_metrics"] is True


def test_gauges_that_are_renewed_by_work_only_are_renewed(tmp_path: Path) -> None:
    code, result = churn(MadeUpEngine(stale=True), tmp_path)
    assert (code, result["findings"]) == (0, [])


def test_blocks_that_stay_held_are_found(tmp_path: Path) -> None:
    code, result = churn(MadeUpEngine(leaked=0.01), tmp_path)
    assert code == 1
    assert result["findings_by_kind"] == {"blocks-leaked": 1}


def test_server_errors_are_found_and_counted(tmp_path: Path) -> None:
    code, result = churn(MadeUpEngine(fails=50), tmp_path)
    assert code == 1
    assert set(result["findings_by_kind"]) == {"server-error"}
    assert result["errors"] == {"HTTP 500": result["counts"]["failed"]}


def test_the_load_can_end_at_the_first_finding(tmp_path: Path) -> None:
    code, result = churn(MadeUpEngine(fails=3), tmp_path, "--stop-early")
    assert code == 1
    assert result["counts"]["requests"] < 100


def test_memory_that_grows_is_found(tmp_path: Path) -> None:
    grow = "import time\nkept = []\nwhile True:\n    kept.append(b'x' * 2**21)\n    time.sleep(0.2)"
    with subprocess.Popen([sys.executable, "-c", grow]) as process:
        try:
            arguments = ("--engine-pid", str(process.pid), "--memory-allowance", "8")
            bounds = ("--seconds", "9", "--requests", "100000", "--clients", "2")
            code, result = churn(MadeUpEngine(), tmp_path, *arguments, *bounds)
        finally:
            process.kill()
    assert code == 1
    assert result["findings_by_kind"] == {"memory-grew": 1}
    assert result["rss"]["growth_mib"] > 8
    assert result["rss"]["slope_mib_per_min"] > 100
