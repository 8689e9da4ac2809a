"""What a Valkey server can refuse or get wrong, and what its clients make of it."""

import time

import pytest

from kvward.errors import BackendDataError, BackendUnavailableError, CapabilityError
from kvward.store.backend import Bucket, Room
from kvward.store.backends.valkey import ValkeyBackend
from kvward.testing.backends import WIDE, entry, new_name, read, usage
from kvward.testing.clocks import ManualClock, WaitingClock
from services import ValkeyServer
from services.process import free_ports

CLOCK = WaitingClock()


def test_a_server_that_evicts_is_refused_at_first_use() -> None:
    with ValkeyServer("--maxmemory-policy", "volatile-lru") as server:
        backend = ValkeyBackend(server.url, WIDE)
        for _ in range(2):
            with pytest.raises(CapabilityError, match="volatile-lru") as caught:
                backend.put_many([entry(new_name(), b"x", CLOCK)])
            assert caught.value.hint == "CONFIG SET maxmemory-policy noeviction"
        server.client.config_set("maxmemory-policy", "noeviction")
        assert backend.put_many([entry(new_name(), b"x", CLOCK)]) == [True]
        backend.close()


def test_a_server_that_does_not_tell_needs_somebody_to_vouch_for_it(
    valkey_server: ValkeyServer,
) -> None:
    rights = ["~kw1:*", "+@read", "+@write", "+@scripting", "+time", "-info"]
    valkey_server.client.execute_command("ACL SETUSER", "quiet", "on", ">pass", *rights)
    url = valkey_server.url.replace("//", "//quiet:pass@")
    name = new_name()
    with pytest.raises(CapabilityError) as caught:
        ValkeyBackend(url, WIDE).get_many([name])
    assert caught.value.hint is not None
    assert "server_never_evicts=True" in caught.value.hint
    backend = ValkeyBackend(url, WIDE, server_never_evicts=True)
    assert backend.put_many([entry(name, b"x", CLOCK)]) == [True]
    assert usage(backend, name.tenant) == (1, 1)
    assert backend.purge(Bucket(tenant=name.tenant, scope=None)) == 1
    backend.close()


def test_wrong_credentials_are_no_answer(valkey_server: ValkeyServer) -> None:
    url = valkey_server.url.replace("//", "//nobody:secret@")
    with pytest.raises(BackendUnavailableError, match="credentials") as caught:
        ValkeyBackend(url, WIDE).get_many([new_name()])
    assert "secret" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def test_a_full_server_refuses_puts_and_still_forgets() -> None:
    with ValkeyServer("--maxmemory", "24mb") as server:
        backend = ValkeyBackend(server.url, Room(capacity_bytes=64 << 20, share_bytes=64 << 20))
        whose = new_name()
        names = [new_name(like=whose) for _ in range(40)]
        kept = [backend.put_many([entry(name, bytes(1 << 20), CLOCK)])[0] for name in names]
        assert kept[0] is True
        assert kept[-1] is False
        assert backend.contains_many(names) == kept
        assert usage(backend, whose.tenant) == (sum(kept), sum(kept) << 20)
        assert backend.put_many([entry(new_name(), bytes(1 << 20), CLOCK)]) == [False]
        backend.delete_many(names[:2])
        assert backend.purge(Bucket(tenant=whose.tenant, scope=None)) == sum(kept) - 2
        assert backend.put_many([entry(names[0], bytes(1 << 20), CLOCK)]) == [True]
        backend.close()


def test_nothing_of_a_tenant_is_left_after_a_purge(valkey_server: ValkeyServer) -> None:
    backend = ValkeyBackend(valkey_server.url, WIDE)
    whose = new_name()
    names = [new_name(like=whose) for _ in range(2500)]
    backend.put_many([entry(name, b"x", CLOCK) for name in names])
    assert backend.purge(Bucket(tenant=whose.tenant, scope=None)) == 2500
    assert list(valkey_server.client.scan_iter(match=f"*{whose.tenant.hex()}*")) == []
    backend.close()


def test_entries_past_their_time_are_swept_from_the_index(valkey_server: ValkeyServer) -> None:
    backend = ValkeyBackend(valkey_server.url, WIDE)
    short, long = new_name(), new_name()
    long = new_name(like=short)
    backend.put_many([entry(short, b"short", CLOCK, lives_s=1), entry(long, b"long", CLOCK)])
    time.sleep(1.1)
    assert usage(backend, short.tenant) == (1, 4)
    backend.close()


def test_expiry_is_counted_from_the_clock_that_was_given(valkey_server: ValkeyServer) -> None:
    clock = ManualClock(1000.0)
    backend = ValkeyBackend(valkey_server.url, WIDE, now_unix_s=clock)
    name = new_name()
    backend.put_many([entry(name, b"x", clock, lives_s=100)])
    key = f"kw1:{{{name.tenant.hex()}}}:{name.scope.hex()}:{name.name.hex()}"
    assert 90_000 < valkey_server.client.pttl(key) <= 100_000
    backend.close()


def test_a_server_that_is_gone_is_no_answer_and_one_that_is_back_is_used_again() -> None:
    with ValkeyServer() as server:
        backend = ValkeyBackend(server.url, WIDE, timeout_s=0.5)
        name = new_name()
        backend.put_many([entry(name, b"x", CLOCK)])
        server.node.process.kill()
        for call in (
            lambda: backend.get_many([name]),
            lambda: backend.put_many([entry(name, b"x", CLOCK)]),
            lambda: backend.contains_many([name]),
            lambda: backend.delete_many([name]),
            lambda: backend.purge(Bucket(tenant=name.tenant, scope=None)),
            backend.stats,
        ):
            with pytest.raises(BackendUnavailableError):
                call()
        backend.close()
        server.restart()
        assert backend.put_many([entry(name, b"y", CLOCK)]) == [True]
        assert read(backend, name) == b"y"
        backend.close()


def test_a_server_that_hangs_is_no_answer_in_time() -> None:
    with ValkeyServer() as server:
        backend = ValkeyBackend(server.url, WIDE, timeout_s=0.3)
        name = new_name()
        backend.put_many([entry(name, b"x", CLOCK)])
        with server.stopped():
            with pytest.raises(BackendUnavailableError):
                backend.get_many([name])
            with pytest.raises(BackendUnavailableError):
                backend.put_many([entry(name, bytes(1 << 20), CLOCK)])
        # An answer that came too late is not taken for that of another question.
        assert read(backend, name) in {b"x", bytes(1 << 20)}
        assert backend.contains_many([new_name()]) == [False]
        backend.close()


def test_nothing_listens_at_the_address() -> None:
    backend = ValkeyBackend(f"valkey://127.0.0.1:{free_ports(1)[0]}", WIDE, timeout_s=0.5)
    with pytest.raises(BackendUnavailableError):
        backend.stats()
    cluster = ValkeyBackend(
        f"valkey://127.0.0.1:{free_ports(1)[0]}", WIDE, cluster=True, timeout_s=0.5
    )
    with pytest.raises(BackendUnavailableError):
        cluster.get_many([new_name()])


def test_a_foreign_value_is_nonsense(valkey_server: ValkeyServer) -> None:
    name = new_name()
    key = f"kw1:{{{name.tenant.hex()}}}:len"
    valkey_server.client.set(key, "not a hash")
    backend = ValkeyBackend(valkey_server.url, WIDE)
    with pytest.raises(BackendDataError):
        backend.put_many([entry(name, b"x", CLOCK)])
    valkey_server.client.delete(key)
    backend.close()
