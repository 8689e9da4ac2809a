"""Real vLLM servers on loopback for the tests of the engine, each stopped by its process id."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvward.cli.process import free_port

PYTHON = os.environ.get("KVWARD_VLLM_PYTHON", "")
MODEL_NAME = "m"
BLOCK_TOKENS = 32
TOLERANCE = 2e-3
_READY_S = 300.0
SOURCE = Path(__file__).parent.parent.parent / "src"


@dataclass(kw_only=True)
class VllmServer:
    """`vllm` with a model, for as long as the `with` block runs; may be started again.

    Attributes:
        arguments: Further ones of vLLM's command line.
        variables: Further ones of its environment.
    """

    model: Path
    folder: Path
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    kv_gib: int = 1
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.folder / "vllm.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            PYTHON, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model), "--served-model-name", MODEL_NAME, "--dtype", "float32",
            "--enforce-eager", "--enable-prompt-tokens-details", "--block-size", str(BLOCK_TOKENS),
            "--language-model-only", "--shutdown-timeout", "10", "--max-num-batched-tokens", "4096",
            "--host", "127.0.0.1", "--port", str(self.port),
            *self.arguments,
        ]  # fmt: skip
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_gib),
            # Otherwise any connector makes vLLM faster, because it frees a core by accident.
            "VLLM_CPU_OMP_THREADS_BIND": "0-1",
            "PYTHONPATH": str(SOURCE),
            **self.variables,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"vLLM ended while starting:\n{self.tail()}")
            if self._is_healthy():
                return
            time.sleep(0.25)
        self.stop()
        raise AssertionError(f"vLLM did not answer within {_READY_S:.0f} s:\n{self.tail()}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None and self._is_healthy()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return int(answer.status) == 200
        except (OSError, urllib.error.URLError):
            return False


def ward_arguments(
    *, module: str = "kvward.adapters.vllm", name: str = "KvwardConnector", **settings: Any
) -> list[str]:
    """Return the arguments that put the connector into vLLM."""
    transfer = {
        "kv_connector": name,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": settings,
    }
    return ["--kv-transfer-config", json.dumps(transfer)]


def read_counts(folder: Path) -> dict[str, int]:
    """Return what all processes of an engine have counted so far, together."""
    total: dict[str, int] = {}
    for path in folder.glob("*.json"):
        for name, count in json.loads(path.read_text()).items():
            total[name] = total.get(name, 0) + count
    return total


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a request gave.

    Attributes:
        top: For each token the most likely ones and their logprobs: a canary is too sure of the
            first for that one to tell anything.
    """

    text: str
    tokens: tuple[str, ...]
    top: tuple[dict[str, float], ...]
    cached_tokens: int
    seconds: float


def same(one: Answer, other: Answer) -> bool:
    """Tell whether two answers agree in their tokens, and in what else was likely."""
    if one.tokens != other.tokens:
        return False
    return all(_agree(mine, theirs) for mine, theirs in zip(one.top, other.top, strict=True))


def _agree(mine: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    # The last of the most likely may change places with the next one by rounding alone.
    common = set(mine) & set(theirs)
    return len(common) >= len(mine) - 1 and all(
        abs(mine[token] - theirs[token]) <= TOLERANCE * max(1.0, abs(mine[token]))
        for token in common
    )


def complete(
    url: str,
    prompt: str | list[int],
    *,
    key: str = "none",
    conversation: str | None = None,
    max_tokens: int = 8,
    body: Mapping[str, Any] | None = None,
) -> Answer:
    """Ask for a greedy completion with logprobs."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    if conversation is not None:
        headers["x-kvward-conversation"] = conversation
    value = {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": 5,
        **(body or {}),
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", data=json.dumps(value).encode(), headers=headers
    )
    began = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as response:
        answer = json.load(response)
    seconds = time.perf_counter() - began
    choice, usage = answer["choices"][0], answer["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        text=choice["text"],
        tokens=tuple(choice["logprobs"]["tokens"]),
        top=tuple(choice["logprobs"]["top_logprobs"]),
        cached_tokens=details.get("cached_tokens") or 0,
        seconds=seconds,
    )
