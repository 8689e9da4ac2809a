"""A backend that fails by plan fails when, where and how the plan says, and no more."""

import pytest

from kvward.errors import BackendUnavailableError
from kvward.store.backend import Bucket, Room
from kvward.store.backends.memory import MemoryBackend
from kvward.testing.backends import BackendConformance, entry, new_name, read
from kvward.testing.clocks import Clock, ManualClock
from kvward.testing.faults import Fault, FaultyBackend

CLOCK = ManualClock()
ROOM = Room(capacity_bytes=1000, share_bytes=1000)
GONE = BackendUnavailableError("Nothing answers.")


class TestWithoutFaults(BackendConformance):
    def open_backend(self, room: Room, clock: Clock) -> FaultyBackend:
        return FaultyBackend(MemoryBackend(room, now_unix_s=clock))


def faulty(*faults: Fault) -> FaultyBackend:
    return FaultyBackend(MemoryBackend(ROOM, now_unix_s=CLOCK), faults)


def test_only_the_planned_calls_fail() -> None:
    backend = faulty(Fault(methods=frozenset({"get_many"}), first_call=2, last_call=3, error=GONE))
    name = new_name()
    backend.put_many([entry(name, b"x", CLOCK)])
    assert read(backend, name) == b"x"
    for _ in range(2):
        with pytest.raises(BackendUnavailableError):
            backend.get_many([name])
        assert backend.contains_many([name]) == [True]
    assert read(backend, name) == b"x"
    assert backend.num_calls("get_many") == 4
    assert backend.num_calls("purge") == 0


@pytest.mark.parametrize("is_done_first", [False, True])
def test_an_error_comes_before_or_after_the_work(is_done_first: bool) -> None:
    backend = faulty(
        Fault(methods=frozenset({"put_many"}), error=GONE, is_done_first=is_done_first)
    )
    name = new_name()
    with pytest.raises(BackendUnavailableError):
        backend.put_many([entry(name, b"x", CLOCK)])
    assert backend.contains_many([name]) == [is_done_first]


def test_every_method_can_fail() -> None:
    backend = faulty(Fault(error=GONE))
    name = new_name()
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
    backend.faults = ()
    assert backend.stats() == {}


def test_delays_of_all_faults_met_add_up() -> None:
    waited: list[float] = []
    slow = Fault(delay_s=0.25)
    slower = Fault(methods=frozenset({"stats"}), delay_s=0.5)
    memory = MemoryBackend(ROOM, now_unix_s=CLOCK)
    backend = FaultyBackend(memory, [slow, slower], sleep=waited.append)
    backend.get_many([])
    backend.stats()
    assert waited == [0.25, 0.25, 0.5]
