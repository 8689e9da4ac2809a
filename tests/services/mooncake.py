"""A Mooncake master and a client that lends it memory. Needs Debian's libibverbs1.

The client listens on all interfaces, whatever it is told: run this in a network namespace, where
there is none but loopback (`make test-mooncake`).
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from services.process import Process, free_ports, new_folder, started

_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_UP = 1
_SEGMENT_BYTES = 256 << 20
_BUFFER_BYTES = 64 << 20


class MooncakeServer:
    """A master on loopback, and `store`, a client in this process."""

    def __enter__(self) -> Self:
        assert [name for _, name in socket.if_nameindex()] == ["lo"], "run `make test-mooncake`"
        bring_up_loopback()
        with ExitStack() as stack:
            self.process = started(lambda: self._start(stack))
            from mooncake.store import MooncakeDistributedStore  # needs libibverbs1

            self.store = MooncakeDistributedStore()
            stack.callback(self.store.close)
            code = self.store.setup(
                "127.0.0.1",
                "P2PHANDSHAKE",
                _SEGMENT_BYTES,
                _BUFFER_BYTES,
                "tcp",
                "",
                f"127.0.0.1:{self._rpc_port}",
            )
            assert code == 0, code
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> Process:
        folder = new_folder(stack, "mooncake")
        self._rpc_port, self.admin_port = free_ports(2)
        package = importlib.util.find_spec("mooncake")
        assert package is not None
        assert package.origin is not None
        master = Path(package.origin).parent / "mooncake_master"
        process = Process(
            [
                str(master),
                "--rpc_address=127.0.0.1",
                f"--rpc_port={self._rpc_port}",
                "--metrics_host=127.0.0.1",
                f"--metrics_port={self.admin_port}",
            ],
            folder=folder,
            environment={"LD_LIBRARY_PATH": os.fspath(master.parent)},
        )
        stack.callback(process.kill)
        process.wait_until(self._answers)
        return process

    def _answers(self) -> bool:
        for port in (self._rpc_port, self.admin_port):
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    return False
        return True


def bring_up_loopback() -> None:
    """Switch loopback on, as a new network namespace begins with it switched off."""
    with socket.socket() as control:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("16xH", fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        if not flags & _UP:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _UP))
