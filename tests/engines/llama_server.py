"""A real llama.cpp server on loopback for the tests of the engine, stopped by its process id."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from engines.vllm_server import MODEL_NAME
from kvward.cli.process import free_port

PROGRAM = os.environ.get("KVWARD_LLAMA_SERVER", "")
SLOTS = 4
_READY_S = 60.0


@dataclass(kw_only=True)
class LlamaServer:
    """`llama-server` with a model in GGUF, for as long as the `with` block runs.

    Attributes:
        arguments: Further ones of its command line.
    """

    model: Path
    folder: Path
    arguments: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "llama.log"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            PROGRAM, "--model", str(self.model), "--alias", MODEL_NAME, "--offline",
            "--parallel", str(SLOTS), "--ctx-size", str(SLOTS * 8192), "--threads", "1",
            "--cache-type-k", "f32", "--cache-type-v", "f32",
            "--host", "127.0.0.1", "--port", str(self.port), *self.arguments,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"llama-server ended while starting:\n{self.tail()}")
            if self._is_healthy():
                return self
            time.sleep(0.1)
        self.stop()
        raise AssertionError(f"llama-server did not answer in {_READY_S:.0f} s:\n{self.tail()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

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

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return int(answer.status) == 200
        except (OSError, urllib.error.URLError):
            return False


@contextmanager
def slot_for_each_key(target: str, slots: Mapping[str, int]) -> Iterator[str]:
    """Serve a front that gives each key a slot of its own, whatever the caller says of slots."""

    class Front(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            key = self.headers["authorization"].removeprefix("Bearer ")
            self._pass_on(json.dumps(body | {"id_slot": slots[key]}).encode())

        def _pass_on(self, body: bytes | None) -> None:
            asked = urllib.request.Request(
                target + self.path, data=body, headers={"content-type": "application/json"}
            )
            try:
                with urllib.request.urlopen(asked, timeout=300) as given:
                    status, kind, answer = given.status, given.headers["content-type"], given.read()
            except urllib.error.HTTPError as refused:
                status, kind, answer = refused.code, "application/json", refused.read()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *told: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
