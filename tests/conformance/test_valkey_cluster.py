"""A cluster that loses a master under load."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from kvward.errors import BackendUnavailableError
from kvward.store.backend import Bucket, EntryName
from kvward.store.backends.valkey import ValkeyBackend
from kvward.testing.backends import WIDE, entry, new_name, read
from kvward.testing.clocks import WaitingClock
from services import ValkeyCluster

CLOCK = WaitingClock()
KILLED = 1


@dataclass
class Load:
    """Puts and gets of one tenant, and the times at which they went well or did not."""

    backend: ValkeyBackend
    tenant: EntryName
    served: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    slowest_s: float = 0.0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            name = new_name(like=self.tenant)
            began = time.monotonic()
            try:
                assert self.backend.put_many([entry(name, name.name, CLOCK)]) == [True]
                found = read(self.backend, name)
                # A failover may lose what was not replicated yet; it may not mix it up.
                assert found in (name.name, None)
                self.served.append(time.monotonic())
            except BackendUnavailableError:
                self.refused.append(time.monotonic())
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            stop.wait(0.01)


def tenant_on(cluster: ValkeyCluster, master: int) -> EntryName:
    while True:
        name = new_name()
        if cluster.master_of(f"{{{name.tenant.hex()}}}") == master:
            return name


def test_a_killed_master_takes_only_its_own_slots_and_only_for_a_while() -> None:
    with ValkeyCluster() as cluster:
        backend = ValkeyBackend(cluster.url, WIDE, cluster=True, timeout_s=1.0)
        loads = [Load(backend, tenant_on(cluster, at)) for at in range(len(cluster.masters))]
        stop = threading.Event()
        before = new_name(like=loads[KILLED].tenant)
        backend.put_many([entry(before, b"before", CLOCK)])
        with ThreadPoolExecutor(len(loads)) as threads:
            runs = [threads.submit(load.run, stop) for load in loads]
            try:
                time.sleep(0.5)
                killed = time.monotonic()
                cluster.kill_master(KILLED)
                cluster.wait_for_promotion(KILLED)
                time.sleep(1.0)
            finally:
                stop.set()
            for run in runs:
                run.result()
        victim = loads[KILLED]
        for load in loads:
            assert load.slowest_s < 3.0
            # All are served in the end, by the same client.
            assert any(at > killed + 1.0 for at in load.served)
            if load is not victim:
                assert load.refused == []
        assert victim.refused
        assert max(victim.refused) < max(victim.served)
        gap_s = max(b - a for a, b in zip(victim.served, victim.served[1:], strict=False))
        assert 0.5 < gap_s < 20.0
        # Replicated before the kill, and under the same accounts as before.
        assert read(backend, before) == b"before"
        tenant = before.tenant
        num_entries = backend.stats()[tenant].num_entries
        assert backend.purge(Bucket(tenant=tenant, scope=None)) == num_entries
        assert tenant not in backend.stats()
        backend.close()


def test_all_keys_of_a_tenant_lie_in_one_slot(valkey_cluster: ValkeyCluster) -> None:
    backend = ValkeyBackend(valkey_cluster.url, WIDE, cluster=True)
    whose = new_name()
    backend.put_many([entry(new_name(like=whose), b"x", CLOCK) for _ in range(20)])
    found = [
        set(node.client.scan_iter(match=f"*{whose.tenant.hex()}*"))
        for node in valkey_cluster.masters
    ]
    assert sorted(map(bool, found)) == [False, False, True]
    backend.close()


def test_batches_may_span_all_masters(valkey_cluster: ValkeyCluster) -> None:
    backend = ValkeyBackend(valkey_cluster.url, WIDE, cluster=True)
    tenants = [tenant_on(valkey_cluster, at) for at in range(3)]
    names = [new_name(like=tenants[at % 3]) for at in range(30)]
    assert all(backend.put_many([entry(name, name.name, CLOCK) for name in names]))
    assert [bytes(data or b"") for data in backend.get_many(names)] == [n.name for n in names]
    assert {tenant.tenant for tenant in tenants} <= set(backend.stats())
    backend.close()


def test_a_client_with_an_old_map_follows_a_slot_that_moved(valkey_cluster: ValkeyCluster) -> None:
    backend = ValkeyBackend(valkey_cluster.url, WIDE, cluster=True)
    name = tenant_on(valkey_cluster, 0)
    tag = f"{{{name.tenant.hex()}}}"
    backend.get_many([name])
    source, target = (valkey_cluster.masters[at].client for at in (0, 2))
    slot = source.cluster("KEYSLOT", tag)
    ids = [valkey_cluster.identity(at) for at in (0, 2)]
    try:
        for client in (target, source):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
        assert backend.put_many([entry(name, b"moved", CLOCK)]) == [True]
        assert read(backend, name) == b"moved"
        with pytest.raises(StopIteration):
            next(source.scan_iter(match=f"*{tag}*"))
        backend.purge(Bucket(tenant=name.tenant, scope=None))
    finally:
        for client in (source, target):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[0])
    backend.close()
