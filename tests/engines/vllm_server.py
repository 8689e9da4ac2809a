"""Real vLLM servers on loopback for the tests of the engine, each stopped by its process id."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.engine_process import EngineProcess

PYTHON = os.environ.get("KVWARD_VLLM_PYTHON", "")
MODEL_NAME = "m"
BLOCK_TOKENS = 32
TOLERANCE = 2e-3
SOURCE = Path(__file__).parent.parent.parent / "src"


@dataclass(kw_only=True)
class VllmServer(EngineProcess):
    """`vllm` with a model, for as long as the `with` block runs; may be started again.

    Attributes:
        arguments: Further ones of vLLM's command line.
        variables: Further ones of its environment.
    """

    name = "vllm"
    ready_s = 300.0
    stop_s = 60.0

    model: Path
    arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    kv_gib: int = 1

    def command(self) -> Sequence[str]:
        return [
            PYTHON, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model), "--served-model-name", MODEL_NAME, "--dtype", "float32",
            "--enforce-eager", "--enable-prompt-tokens-details", "--block-size", str(BLOCK_TOKENS),
            "--language-model-only", "--shutdown-timeout", "10", "--max-num-batched-tokens", "4096",
            "--host", "127.0.0.1", "--port", str(self.port),
            *self.arguments,
        ]  # fmt: skip

    def environment(self) -> Mapping[str, str]:
        return os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_gib),
            # Otherwise any connector makes vLLM faster, because it frees a core by accident.
            "VLLM_CPU_OMP_THREADS_BIND": "0-1",
            "PYTHONPATH": str(SOURCE),
            **self.variables,
        }


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
