"""A real LMCache server on loopback for the tests of the engine, stopped by its process id."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engines.engine_process import EngineProcess
from engines.vllm_server import BLOCK_TOKENS, SOURCE
from kvward.cli.process import free_port

PYTHON = os.environ.get("KVWARD_LMCACHE_PYTHON", "")
"""Interpreter of LMCache's own environment."""
FOR_VLLM = os.environ.get("KVWARD_LMCACHE_FOR_VLLM", "")
"""Folder with LMCache's package alone, for vLLM's environment, which has what it imports."""
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_DISABLE_BANNER": "1",
}


@dataclass(kw_only=True)
class LMCacheServer(EngineProcess):
    """`lmcache server` with memory and a folder behind it, for as long as the `with` block runs.

    Attributes:
        serde: What LMCache does to entries on their way to the folder; None leaves them alone.
    """

    name = "lmcache"
    ready_s = 120.0

    serde: dict[str, object] | None = None
    memory_gib: float = 1.0
    http_port: int = field(default_factory=free_port)

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def health_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}/healthcheck"

    def command(self) -> Sequence[str]:
        self.disk.mkdir(parents=True, exist_ok=True)
        adapter: dict[str, object] = {"type": "fs", "base_path": str(self.disk)}
        if self.serde is not None:
            adapter["serde"] = self.serde
        return [
            str(Path(PYTHON).parent / "lmcache"), "server",
            "--host", "127.0.0.1", "--port", str(self.port),
            "--http-host", "127.0.0.1", "--http-port", str(self.http_port),
            "--l1-size-gb", str(self.memory_gib), "--eviction-policy", "LRU",
            "--chunk-size", str(BLOCK_TOKENS),
            "--supported-transfer-mode", "engine_driven",  # the one that there is for CPU
            "--disable-observability", "--l2-adapter", json.dumps(adapter),
        ]  # fmt: skip

    def environment(self) -> Mapping[str, str]:
        return os.environ | _QUIET

    def vllm_arguments(self) -> list[str]:
        """Return what makes vLLM ask this server."""
        transfer = {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": self.port,
            },
        }
        return ["--kv-transfer-config", json.dumps(transfer)]

    @staticmethod
    def vllm_variables() -> dict[str, str]:
        return _QUIET | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{FOR_VLLM}"}
