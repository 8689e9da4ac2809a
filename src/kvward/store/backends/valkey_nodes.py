"""Which server of a Valkey deployment serves a key, and what its errors mean to a store.

Retries are few on purpose: to an engine a miss is cheaper than a wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import valkey
import valkey.exceptions as vk
from valkey.backoff import NoBackoff
from valkey.cluster import ValkeyCluster
from valkey.connection import PythonRespSerializer
from valkey.retry import Retry

from kvward.errors import BackendDataError, BackendUnavailableError, CapabilityError
from kvward.store.backends.valkey_scripts import Script

# An argument from this length on is sent from where it lies instead of being joined to the others.
_COPIED_BELOW_BYTES = 6000
_REDIRECTIONS = 3

_T = TypeVar("_T")


class Nodes(Protocol):
    """The servers of one deployment."""

    def client_for(self, key: str) -> valkey.Valkey:
        """Return the client of the master that serves a key, as far as is known."""

    def masters(self) -> list[valkey.Valkey]:
        """Return clients of all masters."""

    def learn(self, error: Exception) -> None:
        """Look again who serves what, after an error that may come from not knowing."""

    def close(self) -> None:
        """Close all connections."""


class _Pool(valkey.ConnectionPool):
    def __init__(self, **settings: Any) -> None:  # Any: the client's own settings, passed through
        packer = PythonRespSerializer(_COPIED_BELOW_BYTES, _encode)
        super().__init__(command_packer=packer, **settings)


class SingleNode:
    """One server that serves every key."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        pool_of: Any = _Pool.from_url  # Any: the client has no annotation there
        pool = pool_of(url, **_settings(timeout_s))
        self._client = valkey.Valkey(connection_pool=pool)

    def client_for(self, key: str) -> valkey.Valkey:  # noqa: ARG002 - there is only one
        """Return the client."""
        return self._client

    def masters(self) -> list[valkey.Valkey]:
        """Return the client."""
        return [self._client]

    def learn(self, error: Exception) -> None:
        """There is nothing to learn."""

    def close(self) -> None:
        """Close all connections."""
        self._client.connection_pool.disconnect()


class ClusterNodes:
    """A cluster, asked for its map at first use and after every sign that the map is old."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._cluster = ValkeyCluster(url=url, connection_pool_class=_Pool, **_settings(timeout_s))
        self._looking = threading.Lock()

    def client_for(self, key: str) -> valkey.Valkey:
        """Return the client of the master that serves a key, as far as is known."""
        slot = self._cluster.keyslot(key)
        node = self._cluster.nodes_manager.get_node_from_slot(slot)
        client: valkey.Valkey = self._cluster.get_valkey_connection(node)
        return client

    def masters(self) -> list[valkey.Valkey]:
        """Return clients of all masters."""
        return [self._cluster.get_valkey_connection(n) for n in self._cluster.get_primaries()]

    def learn(self, error: Exception) -> None:
        """Take the address from a redirection; after any other error ask for the whole map."""
        if isinstance(error, vk.MovedError):
            self._cluster.nodes_manager.update_moved_exception(error)
        elif self._looking.acquire(blocking=False):  # one thread looks for all
            try:
                self._cluster.nodes_manager.initialize()
            finally:
                self._looking.release()

    def close(self) -> None:
        """Close all connections."""
        self._cluster.close()


def run_on_node(nodes: Nodes, key: str, call: Callable[[valkey.Valkey], _T]) -> _T:
    """Call with the client of a key's master, again only if another one turns out to serve it.

    Raises:
        BackendUnavailableError: That master does not answer and no other has taken its place.
        BackendDataError: It answered what no server that holds our keys answers.
    """
    with translated():
        for _ in range(_REDIRECTIONS):
            client = nodes.client_for(key)
            try:
                return call(client)
            except (vk.ConnectionError, vk.TimeoutError, vk.ClusterDownError) as exc:
                nodes.learn(exc)
                if nodes.client_for(key) is client:
                    raise
            except (vk.MovedError, vk.SlotNotCoveredError) as exc:
                nodes.learn(exc)
        return call(nodes.client_for(key))


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of the client as errors of a store."""
    try:
        yield
    except (vk.AuthenticationError, vk.AuthorizationError, vk.NoPermissionError) as exc:
        raise BackendUnavailableError(
            "Valkey refuses these credentials.",
            hint="Its account needs the keys kw1:*, the commands of strings, hashes and sorted "
            "sets, and EVALSHA, SCRIPT LOAD, SCAN, TIME and INFO.",
        ) from exc
    except (
        vk.ConnectionError,
        vk.TimeoutError,
        vk.ClusterError,
        vk.ValkeyClusterException,
        vk.AskError,
        vk.TryAgainError,
        vk.ReadOnlyError,
    ) as exc:
        raise BackendUnavailableError("Valkey does not serve this key at the moment.") from exc
    except vk.ValkeyError as exc:
        raise BackendDataError("Valkey answered with something unexpected.") from exc


def run_script(
    client: valkey.Valkey, script: Script, key: str, arguments: Sequence[str | bytes | int]
) -> Any:
    """Run a script on a tenant, sending its source only to a server that does not have it yet."""
    # Any: what a server answers, looked at by the caller.
    passed: list[Any] = [*arguments]
    try:
        return client.evalsha(script.digest, 1, key, *passed)
    except vk.NoScriptError:  # a new server, or one that has just been promoted
        client.script_load(script.source)
        return client.evalsha(script.digest, 1, key, *passed)


def run_pipeline(pipeline: Any) -> list[Any]:
    """Run all commands of a pipeline, then raise the first error there was."""
    # The client's own way of raising rewrites its errors, and a redirection loses its address.
    results: list[Any] = pipeline.execute(raise_on_error=False)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def check_never_evicts(client: valkey.Valkey) -> None:
    """Refuse a server that drops entries of anybody when its memory is full.

    Raises:
        CapabilityError: It does, or does not tell.
    """
    try:
        told: Any = client.info("memory")  # Any: a dictionary of whatever the server tells
        policy = told.get("maxmemory_policy")
    except vk.ResponseError:
        policy = None
    if policy is None:
        raise CapabilityError(
            "Valkey does not tell whether it evicts entries by itself.",
            hint="If its policy is known to be noeviction, pass server_never_evicts=True.",
        )
    if policy != "noeviction":
        raise CapabilityError(
            f"Valkey evicts entries of any tenant when its memory is full ({policy}).",
            hint="CONFIG SET maxmemory-policy noeviction",
        )


def _encode(argument: str | bytes | memoryview | int) -> bytes | memoryview:
    return argument if isinstance(argument, (bytes, memoryview)) else str(argument).encode()


def _settings(timeout_s: float) -> dict[str, Any]:  # Any: the client's own settings
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
