"""The conformance suite on servers that really run: Valkey, a Valkey cluster, S3."""

import os

import pytest

from kvward.store.backend import Backend, Room
from kvward.store.backends.s3 import S3Backend
from kvward.store.backends.s3_bucket import connect_s3
from kvward.store.backends.valkey import ValkeyBackend
from kvward.testing.backends import BackendConformance
from kvward.testing.clocks import Clock, WaitingClock
from services import S3Server, ValkeyCluster, ValkeyServer


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


class TestS3(BackendConformance):
    @pytest.fixture(autouse=True)
    def server(self, s3_server: S3Server) -> None:
        self.server = s3_server
        self.prefix = f"test/{os.urandom(4).hex()}"

    def open_backend(self, room: Room, clock: Clock) -> Backend:
        bucket = connect_s3(
            self.server.bucket,
            region=self.server.region,
            endpoint=self.server.endpoint,
            access_key_id=self.server.access_key_id,
            secret_access_key=self.server.secret_access_key,
        )
        return S3Backend(bucket, room, prefix=self.prefix, now_unix_s=clock)

    def settle(self, backend: Backend) -> None:
        assert isinstance(backend, S3Backend)
        backend.sweep()
