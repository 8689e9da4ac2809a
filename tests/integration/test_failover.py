"""Two replicas over PostgreSQL and a Valkey cluster; a master of the cluster is killed under load.

No error reaches a client, what is missed is computed anew, nobody gets what is not theirs, and
writing resumes for every tenant, the ones on the lost master included.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvward.audit.canary.words import WORDS
from kvward.cli.process import ServerProcess
from kvward.errors import BackendUnavailableError
from kvward.store import EntryName, Room
from kvward.store.backends.valkey import ValkeyBackend
from servers import write_policy
from services import PostgresServer, ValkeyCluster

pytestmark = pytest.mark.timeout(240)

TENANTS = tuple(f"tenant-{number}" for number in range(12))
BEFORE_S, AFTER_S, RESUMED_WITHIN_S = 3.0, 9.0, 30.0


@dataclass
class Client:
    """Asks one replica and remembers what went wrong."""

    port: int
    keys: dict[str, str]
    errors: list[str] = field(default_factory=list)

    def ask(self, tenant: str, conversation: str, prompt: str) -> int:
        """Return how many tokens were reused."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(
                "POST",
                "/v1/completions",
                json.dumps({"model": "canary", "prompt": prompt, "max_tokens": 1}),
                {
                    "authorization": f"Bearer {self.keys[tenant]}",
                    "content-type": "application/json",
                    "x-kvward-conversation": conversation,
                },
            )
            response = connection.getresponse()
            body = json.loads(response.read())
            if response.status != 200:
                self.errors.append(f"{response.status}: {body}")
                return 0
            return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])
        except (OSError, http.client.HTTPException, ValueError) as exc:
            self.errors.append(repr(exc))
            return 0
        finally:
            connection.close()


def prompt_of(seed: object) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=96))


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(num_nodes=6) as cluster:
        yield cluster


def test_a_lost_master_costs_speed_only(
    tmp_path: Path, cluster: ValkeyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer() as postgres:
        monkeypatch.setenv("KVWARD_TEST_DSN", postgres.dsn)
        monkeypatch.setenv("KVWARD_TEST_STORE", cluster.url.replace("valkey:", "valkey-cluster:"))
        keys, policy = write_policy(tmp_path / "gate", tenants=TENANTS, keep=True)
        policy.write_text(
            policy.read_text()
            .replace('"sqlite:keyring.db"', '"postgres:KVWARD_TEST_DSN"')
            .replace('"file:store"', '"env:KVWARD_TEST_STORE"')
            .replace("cache_s = 30 ", "cache_s = 2 ")
        )
        serve = ["serve", "--config", str(policy), "--blocks", "512"]
        with (
            ServerProcess(serve, log=tmp_path / "one.log") as one,
            ServerProcess(serve, log=tmp_path / "two.log") as two,
        ):
            assert one.port is not None
            assert two.port is not None
            clients = [Client(one.port, keys), Client(two.port, keys)]
            run_through_the_loss(clients, cluster)


def run_through_the_loss(clients: list[Client], cluster: ValkeyCluster) -> None:
    first, second = clients
    for tenant in TENANTS:
        first.ask(tenant, "before", prompt_of(tenant))
    time.sleep(0.5)
    reused = {tenant: second.ask(tenant, "before", prompt_of(tenant)) for tenant in TENANTS}
    assert all(reused.values()), reused
    assert not second.ask(TENANTS[0], "before", prompt_of(TENANTS[1]))

    stop = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        load = [pool.submit(put_load_on, clients[n % 2], n, stop) for n in range(4)]
        time.sleep(BEFORE_S)
        assert num_lost(cluster) == 0
        cluster.kill_master(0)
        assert num_lost(cluster) > 0, "no slot was lost, so the test shows nothing"
        time.sleep(AFTER_S)
        stop.set()
        widened = [case for done in load for case in done.result()]
    assert widened == []
    assert first.errors == second.errors == []

    # Writing resumes: what one replica stores now, the other one finds, for every tenant.
    deadline = time.monotonic() + RESUMED_WITHIN_S
    waiting, turn = set(TENANTS), 0
    while waiting and time.monotonic() < deadline:
        turn += 1
        for tenant in waiting:
            first.ask(tenant, f"after-{turn}", prompt_of((tenant, turn)))
        time.sleep(1.0)
        waiting = {
            tenant
            for tenant in waiting
            if not second.ask(tenant, f"after-{turn}", prompt_of((tenant, turn)))
        }
    assert not waiting
    assert first.errors == second.errors == []
    other = second.ask(TENANTS[1], f"after-{turn}", prompt_of((TENANTS[0], turn)))
    assert other == 0


def num_lost(cluster: ValkeyCluster) -> int:
    """Return how many of 48 tenants' slots do not answer now."""
    backend = ValkeyBackend(
        cluster.url, Room(capacity_bytes=1, share_bytes=1), cluster=True, timeout_s=0.2
    )
    lost = 0
    for number in range(48):
        name = EntryName(tenant=bytes([number]) * 16, scope=bytes(16), name=bytes(32))
        try:
            backend.get_many([name])
        except BackendUnavailableError:
            lost += 1
    return lost


def put_load_on(client: Client, number: int, stop: threading.Event) -> list[str]:
    """Ask until told to stop; return every case of reuse where nothing was ever left."""
    random_ = random.Random(number)
    widened, turn = [], 0
    while not stop.is_set():
        turn += 1
        tenant, other = random_.sample(TENANTS, 2)
        prompt = prompt_of((number, turn))
        client.ask(tenant, f"load-{number}-{turn}", prompt)
        client.ask(tenant, f"load-{number}-{turn}", prompt)
        # Another tenant, and another conversation, that never asked this before.
        if client.ask(other, f"load-{number}-{turn}", prompt):
            widened.append(f"{other} has what {tenant} left")
        if client.ask(tenant, f"other-{number}-{turn}", prompt):
            widened.append(f"{tenant} has what another conversation left")
    assert turn > 3
    return widened
