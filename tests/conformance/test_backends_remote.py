"""The conformance suite on servers that really run: Valkey, a Valkey cluster."""

import pytest

from kvward.store.backend import Backend, Room
from kvward.store.backends.valkey import ValkeyBackend
from kvward.testing.backends import BackendConformance
from kvward.testing.clocks import Clock, WaitingClock
from services import ValkeyCluster, ValkeyServer


class TestValkey(BackendConformance):
    @pytest.fixture(autouse=True)
    def server(self, valkey_server: ValkeyServer) -> None:
        self.url = valkey_server.url

    def new_clock(self) -> Clock:
        return WaitingClock()

    def open_backend(self, room: Room, clock: Clock) -> Backend:
        return ValkeyBackend(self.url, room, now_unix_s=clock, timeout_s=5.0)


class TestValkeyCluster(BackendConformance):
    @pytest.fixture(autouse=True)
    def server(self, valkey_cluster: ValkeyCluster) -> None:
        self.url = valkey_cluster.url

    def new_clock(self) -> Clock:
        return WaitingClock()

    def open_backend(self, room: Room, clock: Clock) -> Backend:
        return ValkeyBackend(self.url, room, cluster=True, now_unix_s=clock, timeout_s=5.0)
