"""Start a kvward server as a process of its own, wait until it answers, stop it by its id."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kvward.errors import AdapterError

_POLL_S = 0.05
_SHOWN_LINES = 4


class ServerProcess:
    """A `kvward …` server on a loopback port, for as long as the `with` block runs.

    Args:
        arguments: Arguments of `kvward`, without host and port.
        log: File that takes what the server prints.
        secret: Written to the server's standard input, followed by nothing. [secret]
        ready_within_s: How long it may take to accept connections.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        port: int | None = None,
        uds: Path | None = None,
        secret: bytes = b"",
        ready_within_s: float = 60.0,
    ) -> None:
        self._arguments = [*arguments]
        self._log = log
        self._secret = secret
        self._ready_within_s = ready_within_s
        self._process: subprocess.Popen[bytes] | None = None
        self._uds = uds
        self.port = port
        if uds is not None:
            self._arguments += ["--uds", str(uds)]
        else:
            self.port = free_port() if port is None else port
            self._arguments += ["--host", "127.0.0.1", "--port", str(self.port)]

    @property
    def url(self) -> str:
        """Return the base URL of a server on a port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process id of the running server."""
        if self._process is None:
            raise AdapterError("The server has not been started.")
        return self._process.pid

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                [sys.executable, "-m", "kvward", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        # The pipe stays open while we live: a child that reads its end leaves when we are gone.
        assert self._process.stdin is not None  # noqa: S101 - PIPE above
        try:
            self._process.stdin.write(self._secret)
            self._process.stdin.flush()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask the server to end, and end it after ten seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_within_s
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise AdapterError(f"A server of kvward ended while starting. {self._said()}")
            if self._answers():
                return
            time.sleep(_POLL_S)
        raise AdapterError(
            f"A server of kvward did not answer within {self._ready_within_s:.0f} s. {self._said()}"
        )

    def _answers(self) -> bool:
        family = socket.AF_INET if self._uds is None else socket.AF_UNIX
        address = ("127.0.0.1", self.port) if self._uds is None else str(self._uds)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(address) == 0

    def _said(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line]
        return "It said: " + " ".join(lines[-_SHOWN_LINES:]) if lines else "It said nothing."


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
