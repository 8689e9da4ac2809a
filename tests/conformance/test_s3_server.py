"""What an object store can refuse or get wrong, and what its clients make of it."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from kvward.errors import BackendUnavailableError
from kvward.store.backend import Bucket, Room
from kvward.store.backends.frame import Swept
from kvward.store.backends.s3 import S3Backend
from kvward.store.backends.s3_bucket import connect_s3
from kvward.testing.backends import WIDE, entry, new_name, read, usage
from kvward.testing.clocks import ManualClock
from services import S3Server
from services.process import free_ports


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


Open = Callable[..., S3Backend]


@pytest.fixture
def opened(s3_server: S3Server, clock: ManualClock) -> Iterator[Open]:
    handles = []
    prefix = os.urandom(4).hex()

    def opened(room: Room = WIDE, **changed: str) -> S3Backend:
        settings = {
            "bucket": s3_server.bucket,
            "region": s3_server.region,
            "endpoint": s3_server.endpoint,
            "access_key_id": s3_server.access_key_id,
            "secret_access_key": s3_server.secret_access_key,
        }
        bucket = connect_s3(**(settings | changed), timeout_s=1.0)
        handles.append(S3Backend(bucket, room, prefix=prefix, now_unix_s=clock))
        return handles[-1]

    yield opened
    for handle in handles:
        handle.close()


def test_a_wrong_signature_is_refused(opened: Open, clock: ManualClock) -> None:
    backend = opened(secret_access_key="wrong")
    for call in (
        lambda: backend.put_many([entry(new_name(), b"x", clock)]),
        lambda: backend.get_many([new_name()]),
        lambda: backend.contains_many([new_name()]),
    ):
        with pytest.raises(BackendUnavailableError, match="credentials"):
            call()
    with pytest.raises(BackendUnavailableError):
        backend.stats()


def test_a_missing_bucket_is_no_answer_to_a_put(opened: Open, clock: ManualClock) -> None:
    backend = opened(bucket="missing")
    with pytest.raises(BackendUnavailableError, match="bucket"):
        backend.put_many([entry(new_name(), b"x", clock)])


def test_a_server_that_is_gone_is_no_answer_in_time(opened: Open, clock: ManualClock) -> None:
    backend = opened(endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    name = new_name()
    for call in (
        lambda: backend.put_many([entry(name, b"x", clock)]),
        lambda: backend.get_many([name, new_name()]),
        lambda: backend.contains_many([name]),
        lambda: backend.delete_many([name]),
        lambda: backend.purge(Bucket(tenant=name.tenant, scope=None)),
        backend.stats,
        backend.sweep,
    ):
        began = time.monotonic()
        with pytest.raises(BackendUnavailableError):
            call()
        assert time.monotonic() - began < 5.0


def test_an_object_without_a_frame_is_a_miss_and_swept(
    s3_server: S3Server, opened: Open, clock: ManualClock
) -> None:
    backend = opened()
    name = new_name()
    backend.put_many([entry(name, b"sealed", clock)])
    (path,) = (
        meta["path"] for meta in s3_server.store.list().collect() if name.name.hex() in meta["path"]
    )
    s3_server.store.put(path, b"somebody wrote something else here")
    assert backend.get_many([name]) == [None]
    assert backend.contains_many([name]) == [False]
    assert backend.sweep() == Swept(expired_entries=1, evicted_entries=0)
    assert backend.get_many([name]) == [None]


def test_foreign_objects_are_neither_counted_nor_swept(
    s3_server: S3Server, opened: Open, clock: ManualClock
) -> None:
    backend = opened()
    name = new_name()
    backend.put_many([entry(name, b"sealed", clock)])
    s3_server.store.put(f"{backend._prefix}/readme", b"x" * 100)
    s3_server.store.put(f"{backend._prefix}/{name.tenant.hex()}/readme", b"x" * 100)
    assert backend.stats().keys() == {name.tenant}
    assert usage(backend, name.tenant) == (1, 6)
    assert backend.sweep() == Swept(expired_entries=0, evicted_entries=0)
    assert backend.purge(Bucket(tenant=name.tenant, scope=None)) == 1


def test_a_sweep_removes_what_is_past_its_time_before_what_is_old(
    opened: Open, clock: ManualClock
) -> None:
    backend = opened(Room(capacity_bytes=300, share_bytes=300))
    whose = new_name()
    old, middle, short, young = (new_name(like=whose) for _ in range(4))
    backend.put_many([entry(old, b"o" * 100, clock), entry(middle, b"m" * 100, clock)])
    backend.put_many([entry(short, b"s" * 100, clock, lives_s=5)])
    backend.put_many([entry(young, b"y" * 100, clock)])
    assert usage(backend, whose.tenant) == (4, 400)
    clock.advance(6.0)
    assert backend.sweep() == Swept(expired_entries=1, evicted_entries=0)
    assert backend.contains_many([old, middle, short, young]) == [True, True, False, True]
    backend.put_many([entry(short, b"t" * 150, clock)])
    assert backend.sweep() == Swept(expired_entries=0, evicted_entries=2)
    assert backend.contains_many([old, middle, short, young]) == [False, False, True, True]
    assert backend.stats()[whose.tenant].evicted_entries == 2


def test_entries_are_durable_beyond_the_backends_life(opened: Open, clock: ManualClock) -> None:
    name = new_name()
    opened().put_many([entry(name, b"x", clock)])
    later = opened()
    assert later.capabilities.durable
    assert read(later, name) == b"x"


def test_two_prefixes_are_two_stores(s3_server: S3Server, opened: Open, clock: ManualClock) -> None:
    name = new_name()
    one = opened()
    other = S3Backend(s3_server.store, WIDE, prefix="other", now_unix_s=clock)
    one.put_many([entry(name, b"x", clock)])
    assert other.get_many([name]) == [None]
    assert name.tenant not in other.stats()
    other.close()
