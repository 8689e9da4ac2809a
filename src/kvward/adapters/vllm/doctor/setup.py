"""Everything a rule may look at: command line, environment, and what stands in front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

from kvward.adapters.vllm.doctor.command_line import CommandLine
from kvward.adapters.vllm.doctor.environment import Environment
from kvward.adapters.vllm.doctor.finding import Severity

WARD_MIDDLEWARE = "kvward.gateway.vllm.WardMiddleware"
WARD_CONNECTOR = "KvwardConnector"
WARD_CONNECTOR_MODULE = "kvward.adapters.vllm"


class Reach(Enum):
    """From where a socket can be reached."""

    FILE = "through a socket in the file system"
    LOOPBACK = "from this machine"
    NETWORK = "from other machines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One engine as it would be started.

    Attributes:
        behind_gateway: Whether the operator says that every request comes through the gateway.
    """

    command_line: CommandLine
    environment: Environment
    behind_gateway: bool

    @property
    def middleware(self) -> tuple[str, ...]:
        """Return the middleware in the order given; the last one sees a request first."""
        return self.command_line.values.get("middleware", ())

    @property
    def has_ward(self) -> bool:
        """Return whether our middleware runs inside the server."""
        return WARD_MIDDLEWARE in self.middleware

    @property
    def is_guarded(self) -> bool:
        """Return whether something of ours decides the scope of requests."""
        return self.behind_gateway or self.has_ward

    @property
    def reach(self) -> Reach:
        """Return from where the HTTP server can be reached."""
        if self.command_line.value("uds") is not None:
            return Reach.FILE
        return reach_of_host(self.command_line.value("host"))

    def severity(self, *, bare: Severity, guarded: Severity) -> Severity:
        """Choose by whether something of ours stands in front."""
        return guarded if self.is_guarded else bare


def reach_of_host(host: str | None) -> Reach:
    """Return from where a socket bound to a host can be reached; every name but one is far."""
    if host is None:
        return Reach.NETWORK
    if host == "localhost":
        return Reach.LOOPBACK
    try:
        return Reach.LOOPBACK if ip_address(host.strip("[]")).is_loopback else Reach.NETWORK
    except ValueError:
        return Reach.NETWORK


def reach_of_endpoint(endpoint: str) -> Reach:
    """Return from where a ZeroMQ endpoint can be reached."""
    transport, _, address = endpoint.partition("://")
    if transport in {"ipc", "inproc"} and address:
        return Reach.FILE
    return reach_of_host(address.rpartition(":")[0])


def is_truth(settings: Mapping[str, object], key: str) -> bool:
    """Return whether a JSON setting is on; whatever is not plainly off counts as on."""
    value = settings.get(key)
    return value not in (None, False, 0) and str(value).lower() not in {"false", "0", "no", "off"}
