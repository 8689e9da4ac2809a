"""A real engine's process on loopback, for as long as a `with` block runs; stopped by its id."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from kvward.cli.process import free_port


@dataclass(kw_only=True)
class EngineProcess(ABC):
    """Starts a program, waits until it says that it is well, and ends it."""

    name: ClassVar[str]
    ready_s: ClassVar[float]
    stop_s: ClassVar[float] = 30.0
    poll_s: ClassVar[float] = 0.25

    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program with its arguments."""

    @abstractmethod
    def environment(self) -> Mapping[str, str] | None:
        """Return the variables that it sees; None for ours."""

    @property
    def health_url(self) -> str:
        return f"{self.url}/health"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

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
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
            )
        deadline = time.monotonic() + self.ready_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"{self.name} ended while starting:\n{self.tail()}")
            if self._is_healthy():
                return
            time.sleep(self.poll_s)
        self.stop()
        raise AssertionError(
            f"{self.name} did not answer within {self.ready_s:.0f} s:\n{self.tail()}"
        )

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=self.stop_s)
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
            with urllib.request.urlopen(self.health_url, timeout=5) as answer:
                return int(answer.status) == 200
        except (OSError, urllib.error.URLError):
            return False
