"""The conformance suite on a Mooncake Store that really runs: `make test-mooncake`."""

from collections.abc import Iterator

import pytest

from kvward.store.backend import Backend, Room
from kvward.store.backends.mooncake import MooncakeBackend
from kvward.testing.backends import BackendConformance
from kvward.testing.clocks import Clock
from services.mooncake import MooncakeServer


@pytest.fixture(scope="session")
def mooncake_server() -> Iterator[MooncakeServer]:
    with MooncakeServer() as server:
        yield server


class TestMooncake(BackendConformance):
    @pytest.fixture(autouse=True)
    def server(self, mooncake_server: MooncakeServer) -> None:
        self.server = mooncake_server

    def open_backend(self, room: Room, clock: Clock) -> Backend:
        return MooncakeBackend(
            self.server.store,
            room,
            admin_host="127.0.0.1",
            admin_port=self.server.admin_port,
            now_unix_s=clock,
        )

    def settle(self, backend: Backend) -> None:
        assert isinstance(backend, MooncakeBackend)
        backend.sweep()
