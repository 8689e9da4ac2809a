"""One server process: started, waited for, and stopped by its id, never by its name."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_POLL_S = 0.02
_SHOWN_CHARACTERS = 800


class StartError(RuntimeError):
    """A server ended while starting, or did not answer in time."""


class Process:
    """A running server.

    Args:
        command: Program and arguments.
        folder: Working folder, also HOME, so that nothing is written elsewhere.
        user: User that it runs as; None for the one that runs the tests.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log = folder / f"{Path(command[0]).name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=user,
                group=None if user is None else group_of(user),
                extra_groups=None if user is None else [],
                env=clean_environment(folder) | dict(environment or {}),
                start_new_session=True,  # Ctrl-C reaches the tests, which then stop the server
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, answers: Callable[[], bool], *, within_s: float = 20.0) -> None:
        """Wait until the server answers; it is stopped if it never does."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if not self.is_running():
                raise StartError(f"{self._log.stem} ended while starting: {self._said()}")
            if answers():
                return
            time.sleep(_POLL_S)
        self.kill()
        raise StartError(f"{self._log.stem} did not answer in {within_s:.0f} s: {self._said()}")

    def stop(self, *, with_signal: int = signal.SIGTERM, within_s: float = 10.0) -> None:
        """Ask the server to end, and end it if it has not after a while."""
        if self.is_running():
            self._process.send_signal(with_signal)
            try:
                self._process.wait(timeout=within_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End the server at once, as a crash of its machine would."""
        if self.is_running():
            self._process.kill()
        self._process.wait()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-_SHOWN_CHARACTERS:].strip() or "(nothing)"


def new_folder(stack: ExitStack, name: str) -> Path:
    """Make a temporary folder with a short path, since Unix sockets allow 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix=f"kvward-{name}-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def free_ports(count: int) -> list[int]:
    """Return different loopback ports that were free a moment ago."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def started(start: Callable[[], T], *, attempts: int = 3) -> T:
    """Start a server, with other ports if somebody else took one of them meanwhile."""
    for _ in range(attempts - 1):
        try:
            return start()
        except StartError:
            continue
    return start()


def group_of(user: str) -> int:
    """Return the main group of a user."""
    return pwd.getpwnam(user).pw_gid


def clean_environment(folder: Path) -> dict[str, str]:
    """Return an environment without proxies, credentials and settings of whoever runs the tests."""
    return {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
    }
