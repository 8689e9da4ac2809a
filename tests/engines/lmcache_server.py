"""A real LMCache server on loopback for the tests of the engine, stopped by its process id."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from engines.vllm_server import BLOCK_TOKENS, SOURCE
from kvward.cli.process import free_port

PYTHON = os.environ.get("KVWARD_LMCACHE_PYTHON", "")
"""Interpreter of LMCache's own environment."""
FOR_VLLM = os.environ.get("KVWARD_LMCACHE_FOR_VLLM", "")
"""Folder with LMCache's package alone, for vLLM's environment, which has what it imports."""
_READY_S = 120.0
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "LMCACHE_DISABLE_BANNER": "1",
}


@dataclass(kw_only=True)
class LMCacheServer:
    """`lmcache server` with memory and a folder behind it, for as long as the `with` block runs.

    Attributes:
        serde: What LMCache does to entries on their way to the folder; None leaves them alone.
    """

    folder: Path
    serde: dict[str, object] | None = None
    memory_gib: float = 1.0
    port: int = field(default_factory=free_port)
    http_port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def log(self) -> Path:
        return self.folder / "lmcache.log"

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
        self.disk.mkdir(parents=True, exist_ok=True)
        adapter: dict[str, object] = {"type": "fs", "base_path": str(self.disk)}
        if self.serde is not None:
            adapter["serde"] = self.serde
        command = [
            str(Path(PYTHON).parent / "lmcache"), "server",
            "--host", "127.0.0.1", "--port", str(self.port),
            "--http-host", "127.0.0.1", "--http-port", str(self.http_port),
            "--l1-size-gb", str(self.memory_gib), "--eviction-policy", "LRU",
            "--chunk-size", str(BLOCK_TOKENS),
            "--supported-transfer-mode", "engine_driven",  # the one that there is for CPU
            "--disable-observability", "--l2-adapter", json.dumps(adapter),
        ]  # fmt: skip
        environment = os.environ | _QUIET
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"LMCache ended while starting:\n{self.tail()}")
            if self._is_healthy():
                return
            time.sleep(0.25)
        self.stop()
        raise AssertionError(f"LMCache did not answer within {_READY_S:.0f} s:\n{self.tail()}")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

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

    def _is_healthy(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.http_port}/healthcheck"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return int(answer.status) == 200
        except (OSError, urllib.error.URLError):
            return False
