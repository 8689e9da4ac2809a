"""A real llama.cpp server on loopback for the tests of the engine, stopped by its process id."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from engines.engine_process import EngineProcess
from engines.vllm_server import MODEL_NAME

PROGRAM = os.environ.get("KVWARD_LLAMA_SERVER", "")
SLOTS = 4


@dataclass(kw_only=True)
class LlamaServer(EngineProcess):
    """`llama-server` with a model in GGUF, for as long as the `with` block runs.

    Attributes:
        arguments: Further ones of its command line.
    """

    name = "llama"
    ready_s = 60.0
    poll_s = 0.1

    model: Path
    arguments: Sequence[str] = ()

    def command(self) -> Sequence[str]:
        return [
            PROGRAM, "--model", str(self.model), "--alias", MODEL_NAME, "--offline",
            "--parallel", str(SLOTS), "--ctx-size", str(SLOTS * 8192), "--threads", "1",
            "--cache-type-k", "f32", "--cache-type-v", "f32",
            "--host", "127.0.0.1", "--port", str(self.port), *self.arguments,
        ]  # fmt: skip

    def environment(self) -> None:
        return None


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
