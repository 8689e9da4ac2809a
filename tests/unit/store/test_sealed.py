"""The sealed store: blocks as a whole or not at all, and failures that cost speed only."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvward.blocks.layout import BlockLayout, Part
from kvward.errors import (
    BackendUnavailableError,
    EpochRetiredError,
    KeyringError,
    KeyringUnavailableError,
    UsageError,
)
from kvward.scope import NameKey, SealKey
from kvward.scope.keyring import ScopeKeys
from kvward.scope.owner import ScopeOwner
from kvward.store import EntryName, Room, SealedStore, StoreLimits
from kvward.store.backend import Entry
from kvward.store.backends.memory import MemoryBackend
from kvward.testing.clocks import ManualClock
from kvward.testing.faults import Fault, FaultyBackend

LAYOUT = BlockLayout(
    order="layer,plane,token,head,channel",
    dtype="int8",
    block_tokens=4,
    num_planes=2,
    num_kv_heads=2,
    head_dim=4,
    tensor_ranks=2,
    layers_of_stage=(1, 2),
    num_kv_groups=1,
)
PARTS = LAYOUT.parts
BLOCK = LAYOUT.block_bytes
LIMITS = StoreLimits(max_age_s=100, clock_skew_s=10, retry_after_s=5.0)
WIDE = Room(capacity_bytes=1 << 24, share_bytes=1 << 22)
HASHES = [hashlib.sha256(b"%d" % number).digest() for number in range(4)]
DOWN = BackendUnavailableError("down")


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str | int]]] = []

    def emit(self, name: str, /, **fields: str | int) -> None:
        self.seen.append((name, fields))

    def reasons(self) -> list[tuple[str, str | int]]:
        return [(name, fields["reason"]) for name, fields in self.seen]


class Keys:
    """Keys of scopes by their owner, one set for each epoch; or an error."""

    def __init__(self) -> None:
        self.error: KeyringError | None = None
        self.writing_error: KeyringError | None = None
        self.known: dict[tuple[bytes, int], ScopeKeys] = {}

    def made(self, owner: ScopeOwner, epoch: int) -> ScopeKeys:
        place = (owner.scope_id, epoch)
        if place not in self.known:
            self.known[place] = ScopeKeys(
                epoch=epoch,
                tenant_bucket=owner.tenant_id[:16],
                scope_bucket=owner.scope_id[:16],
                seal_key=SealKey(os.urandom(32)),
                name_key=NameKey(os.urandom(32)),
            )
        return self.known[place]

    def reading_keys(self, owner: ScopeOwner) -> Sequence[ScopeKeys]:
        if self.error is not None:
            raise self.error
        epochs = range(owner.epoch, -1, -1)
        return [self.known[owner.scope_id, e] for e in epochs if (owner.scope_id, e) in self.known]

    def writing_keys(self, owner: ScopeOwner) -> ScopeKeys:
        error = self.error or self.writing_error
        if error is not None:
            raise error
        return self.made(owner, owner.epoch)


@dataclass(kw_only=True)
class Case:
    """A store with everything around it that a test changes."""

    room: Room = WIDE
    executor: ThreadPoolExecutor | None = None
    layout: BlockLayout = LAYOUT
    clock: ManualClock = field(default_factory=ManualClock)
    monotonic: ManualClock = field(default_factory=lambda: ManualClock(0.0))
    events: Events = field(default_factory=Events)
    keys: Keys = field(default_factory=Keys)

    def __post_init__(self) -> None:
        self.memory = MemoryBackend(self.room, now_unix_s=self.clock)
        self.backend = FaultyBackend(self.memory)
        self.store = self.opened(self.backend)

    def opened(self, backend: Any, *, layout: BlockLayout | None = None) -> SealedStore:
        return SealedStore(
            backend,
            self.keys,
            layout=layout or self.layout,
            limits=LIMITS,
            events=self.events,
            executor=self.executor,
            now_unix_s=self.clock,
            monotonic_s=self.monotonic,
        )

    def save(self, whose: ScopeOwner, hashes: Sequence[bytes] = HASHES) -> list[bool]:
        blocks = [content(h, whose, self.layout) for h in hashes]
        return self.store.scope(whose).save(hashes, blocks, parts=self.layout.parts)

    def load(self, whose: ScopeOwner, hashes: Sequence[bytes] = HASHES) -> list[bool]:
        """Load and check the bytes: the right ones, or zero."""
        staging = dirty(len(hashes) * self.layout.block_bytes)
        loaded = self.store.scope(whose).load(hashes, staging, parts=self.layout.parts)
        check(staging, loaded, hashes, whose, self.layout)
        return loaded

    def names(self) -> list[EntryName]:
        return list(self.memory._entries)

    def change(self, name: EntryName, how: Callable[[bytes], bytes]) -> None:
        data, expires = self.memory._entries[name]
        self.memory._entries[name] = (how(data), expires)


def owner(tenant: str = "a", scope: str = "s", epoch: int = 0) -> ScopeOwner:
    return ScopeOwner(
        tenant_id=hashlib.sha256(tenant.encode()).digest()[:24],
        scope_id=hashlib.sha256((tenant + "/" + scope).encode()).digest()[:24],
        epoch=epoch,
    )


def content(chain_hash: bytes, whose: ScopeOwner, layout: BlockLayout = LAYOUT) -> bytes:
    return hashlib.shake_256(chain_hash + whose.scope_id).digest(layout.block_bytes)


def dirty(num_bytes: int) -> memoryview:
    return memoryview(bytearray(b"\xff" * num_bytes))


def check(
    staging: memoryview,
    loaded: Sequence[bool],
    hashes: Sequence[bytes],
    whose: ScopeOwner,
    layout: BlockLayout = LAYOUT,
) -> None:
    size = layout.block_bytes
    for number, (chain_hash, there) in enumerate(zip(hashes, loaded, strict=True)):
        data = bytes(staging[number * size : (number + 1) * size])
        assert data == (content(chain_hash, whose, layout) if there else bytes(size))


def flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


# All parts or nothing


def test_what_is_saved_is_loaded_and_contained() -> None:
    case = Case()
    assert case.save(owner()) == [True] * 4
    assert len(case.names()) == 4 * len(PARTS)
    assert case.store.scope(owner()).contains(HASHES) == [True] * 4
    assert case.load(owner()) == [True] * 4
    assert case.load(owner("b")) == [False] * 4
    assert case.load(owner("a", "t")) == [False] * 4
    assert case.events.seen == []


@pytest.mark.parametrize("gone", range(len(PARTS)))
def test_a_block_with_a_part_missing_is_not_there_but_its_other_parts_are(gone: int) -> None:
    case = Case()
    case.save(owner(), HASHES[:1])
    case.save(owner(), HASHES[1:2])
    case.memory.delete_many([case.names()[gone]])
    scoped = case.store.scope(owner())
    assert scoped.contains(HASHES[:2]) == [False, True]
    assert case.load(owner(), HASHES[:2]) == [False, True]
    assert case.events.reasons() == [("store.incomplete", "missing-part")]
    for number, part in enumerate(PARTS):
        staging = dirty(LAYOUT.part_bytes(part))
        assert scoped.load(HASHES[:1], staging, parts=[part]) == [number != gone]
        assert any(staging) is (number != gone)


def test_parts_that_ranks_save_and_load_for_themselves_are_one_block() -> None:
    case = Case()
    scoped = case.store.scope(owner())
    whole = content(HASHES[0], owner())
    place = 0
    for number, part in enumerate(PARTS):
        assert scoped.contains(HASHES[:1]) == [False]
        size = LAYOUT.part_bytes(part)
        assert scoped.save(HASHES[:1], [whole[place : place + size]], parts=[part]) == [True]
        staging = dirty(size)
        assert scoped.load(HASHES[:1], staging, parts=[part]) == [True]
        assert staging == whole[place : place + size]
        place += size
        assert scoped.contains(HASHES[:1]) == [number == len(PARTS) - 1]
    assert case.load(owner(), HASHES[:1]) == [True]
    # In any order and any selection, each block's parts after one another.
    some: list[Part] = [PARTS[3], PARTS[0]]
    staging = dirty(2 * sum(map(LAYOUT.part_bytes, some)))
    assert scoped.load([HASHES[0], HASHES[1]], staging, parts=some) == [True, False]
    expected = whole[-LAYOUT.part_bytes(PARTS[3]) :] + whole[: LAYOUT.part_bytes(PARTS[0])]
    assert bytes(staging) == expected + bytes(len(expected))


def test_lengths_that_do_not_fit_are_the_callers_mistake() -> None:
    case = Case()
    scoped = case.store.scope(owner())
    for num_bytes in (0, BLOCK - 1, BLOCK + 1, 2 * BLOCK):
        with pytest.raises(ValueError, match="does not fit"):
            scoped.load(HASHES[:1], dirty(num_bytes), parts=PARTS)
        with pytest.raises(ValueError, match="layout says"):
            scoped.save(HASHES[:1], [bytes(num_bytes)], parts=PARTS)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        scoped.save(HASHES[:2], [bytes(BLOCK)], parts=PARTS)
    assert case.names() == []
    assert case.backend.num_calls("put_many") == 0


@pytest.mark.parametrize(
    "limits",
    [{"max_age_s": 0}, {"clock_skew_s": -1}, {"retry_after_s": 0.0}, {"retry_after_s": -1.0}],
)
def test_limits_are_positive(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        StoreLimits(**{"max_age_s": 1, "clock_skew_s": 0, "retry_after_s": 1.0} | limits)


def test_empty_lists_are_answered_with_empty_lists() -> None:
    case = Case()
    scoped = case.store.scope(owner())
    assert scoped.contains([]) == []
    assert scoped.load([], memoryview(bytearray()), parts=PARTS) == []
    assert scoped.save([], [], parts=PARTS) == []
    assert case.events.seen == []


def test_the_same_block_may_be_asked_for_twice() -> None:
    case = Case()
    case.save(owner(), HASHES[:1])
    assert case.load(owner(), [HASHES[0], HASHES[1], HASHES[0]]) == [True, False, True]


# Epochs


def test_blocks_are_found_in_every_epoch_and_written_in_the_newest() -> None:
    case = Case()
    for epoch in range(3):
        assert all(case.save(owner(epoch=epoch), HASHES[epoch : epoch + 1]))
    assert case.load(owner(epoch=2)) == [True, True, True, False]
    assert case.load(owner(epoch=1)) == [True, True, False, False]
    assert case.load(owner(epoch=0)) == [True, False, False, False]
    assert case.store.scope(owner(epoch=2)).contains(HASHES) == [True, True, True, False]


def test_the_newest_epoch_is_read_first_and_the_older_one_for_what_is_missing_only() -> None:
    case = Case()
    case.save(owner(epoch=0))
    case.save(owner(epoch=1), HASHES[:3])
    before = case.backend.num_calls("get_many")
    assert case.load(owner(epoch=1)) == [True] * 4
    assert case.backend.num_calls("get_many") == before + 2
    assert case.load(owner(epoch=1), HASHES[:3]) == [True] * 3
    assert case.backend.num_calls("get_many") == before + 3


def test_a_bad_block_of_a_new_epoch_is_taken_from_an_older_one() -> None:
    case = Case()
    case.save(owner(epoch=0), HASHES[:1])
    old = set(case.names())
    case.save(owner(epoch=1), HASHES[:1])
    for name in set(case.names()) - old:
        case.change(name, flip_last)
    assert case.load(owner(epoch=1), HASHES[:1]) == [True]
    assert case.events.reasons() == [("store.refused", "not-authentic")] * len(PARTS)
    assert set(case.names()) == old


def test_parts_of_two_epochs_are_no_block() -> None:
    case = Case()
    case.save(owner(epoch=0), HASHES[:1])
    old = case.names()
    case.save(owner(epoch=1), HASHES[:1])
    new = [name for name in case.names() if name not in old]
    case.memory.delete_many([old[0], new[1]])
    assert case.load(owner(epoch=1), HASHES[:1]) == [False]
    assert case.events.reasons() == [("store.incomplete", "missing-part")] * 2


# What does not open is dropped, counted and gone from memory


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (flip_last, "not-authentic"),
        (lambda data: data[:-1], "length"),
        (lambda data: data + b"\x00", "length"),
        (lambda data: data[:70], "too-short"),
        (lambda data: b"", "too-short"),
        (lambda data: b"x" + data[1:], "not-a-block"),
        (lambda data: data[:4] + b"\x02" + data[5:], "version"),
        (lambda data: data[:5] + b"\x07" + data[6:], "suite"),
        (lambda data: data[:7] + b"\x01" + data[8:], "reserved"),
        (lambda data: data[:8] + bytes(8) + data[16:], "other-key"),
        (lambda data: data[:23] + b"\x09" + data[24:], "other-epoch"),
        (lambda data: data[:24] + bytes(8) + data[32:], "expired"),
        (lambda data: data[:24] + b"\x00\xff" + bytes(6) + data[32:], "from-the-future"),
        (lambda data: data[:40] + bytes(24) + data[64:], "not-authentic"),
    ],
)
def test_a_changed_part_is_refused_dropped_and_counted_once(
    how: Callable[[bytes], bytes], reason: str
) -> None:
    case = Case()
    case.save(owner())
    before = case.names()
    case.change(before[1], how)
    assert case.load(owner()) == [False, True, True, True]
    assert case.events.reasons() == [("store.refused", reason)]
    assert set(before) - set(case.names()) == {before[1]}
    assert case.load(owner()) == [False, True, True, True]
    assert case.events.reasons()[1:] == [("store.incomplete", "missing-part")]
    assert case.save(owner(), HASHES[:1]) == [True]
    assert case.load(owner()) == [True] * 4


def test_bytes_of_another_place_scope_or_tenant_are_refused() -> None:
    case = Case()
    for whose in (owner(), owner("a", "t"), owner("b")):
        case.save(whose, HASHES[:2])
    kept = {name: data for name, (data, _) in case.memory._entries.items()}
    names = list(kept)
    first, rest = names[0], names[1:]
    for other in rest:
        case.change(first, lambda data, other=other: kept[other])
        assert case.load(owner(), HASHES[:1]) == [False]
        case.save(owner(), HASHES[:1])
    assert len(case.events.seen) == len(rest)
    assert {name for name, _ in case.events.reasons()} == {"store.refused"}


def test_a_store_of_another_layout_opens_nothing() -> None:
    case = Case()
    case.save(owner(), HASHES[:1])
    other = BlockLayout(
        order="layer,plane,head,token,channel",
        dtype="int8",
        block_tokens=4,
        num_planes=2,
        num_kv_heads=2,
        head_dim=4,
        tensor_ranks=2,
        layers_of_stage=(1, 2),
        num_kv_groups=1,
    )
    staging = dirty(BLOCK)
    store = case.opened(case.backend, layout=other)
    assert store.scope(owner()).load(HASHES[:1], staging, parts=other.parts) == [False]
    assert not any(staging)


def test_age_and_clock_skew_are_held_to_the_second() -> None:
    case = Case()
    case.save(owner(), HASHES[:1])
    made = case.clock()
    kept = dict(case.memory._entries)
    for then, there in [
        (made + LIMITS.max_age_s, True),
        (made + LIMITS.max_age_s + 1, False),
        (made - LIMITS.clock_skew_s, True),
        (made - LIMITS.clock_skew_s - 1, False),
    ]:
        # The backend does not notice: the header is what counts.
        case.memory._entries = {name: (data, 2**40) for name, (data, _) in kept.items()}
        case.clock.advance(then - case.clock())
        assert case.load(owner(), HASHES[:1]) == [there]
    assert {reason for _, reason in case.events.reasons()} == {"expired", "from-the-future"}


def test_a_backend_that_fails_in_the_second_epoch_leaves_what_the_first_gave() -> None:
    case = Case()
    case.save(owner(epoch=0))
    case.save(owner(epoch=1), HASHES[:2])
    calls = case.backend.num_calls("get_many")
    case.backend.faults = (
        Fault(methods=frozenset({"get_many"}), first_call=calls + 2, error=DOWN),
    )
    assert case.load(owner(epoch=1)) == [True, True, False, False]
    assert case.events.reasons() == [("store.unavailable", "store.backend-unavailable")]


def test_memory_is_wiped_even_when_something_unforeseen_is_raised() -> None:
    case = Case()
    case.save(owner(epoch=0))
    case.save(owner(epoch=1), HASHES[:1])

    class Broken(FaultyBackend):
        def get_many(self, names: Sequence[EntryName]) -> Any:
            if len(names) < 4 * len(PARTS):
                raise RuntimeError("unforeseen")
            return super().get_many(names)

    staging = dirty(4 * BLOCK)
    scoped = case.opened(Broken(case.memory)).scope(owner(epoch=1))
    with pytest.raises(RuntimeError):
        scoped.load(HASHES, staging, parts=PARTS)
    assert not any(staging[BLOCK:])


def test_a_drop_that_fails_costs_no_good_block() -> None:
    case = Case()
    case.save(owner())
    case.change(case.names()[0], flip_last)
    case.backend.faults = (Fault(methods=frozenset({"delete_many"}), error=DOWN),)
    assert case.load(owner()) == [False, True, True, True]


# What does not answer


@pytest.mark.parametrize("method", ["get_many", "put_many", "contains_many"])
def test_an_outage_is_one_tenants_and_ends_after_its_time(method: str) -> None:
    case = Case()
    for tenant in ("a", "b"):
        case.save(owner(tenant))
    mine, other = owner(), owner("b")
    calls = case.backend.num_calls(method)
    case.backend.faults = (
        Fault(methods=frozenset({method}), first_call=calls + 1, last_call=calls + 1, error=DOWN),
    )
    ask: Callable[[ScopeOwner], list[bool]] = {
        "get_many": case.load,
        "put_many": case.save,
        "contains_many": lambda whose: case.store.scope(whose).contains(HASHES),
    }[method]
    assert ask(mine) == [False] * 4
    assert case.events.reasons() == [("store.unavailable", "store.backend-unavailable")]
    calls = [case.backend.num_calls(m) for m in ("get_many", "put_many", "contains_many")]
    case.monotonic.advance(LIMITS.retry_after_s - 0.01)
    # Left alone, in every scope of the tenant and by every way.
    for whose in (mine, owner("a", "t")):
        assert case.load(whose) == case.save(whose) == [False] * 4
        assert case.store.scope(whose).contains(HASHES) == [False] * 4
    assert [case.backend.num_calls(m) for m in ("get_many", "put_many", "contains_many")] == calls
    assert case.load(other) == case.save(other) == [True] * 4
    case.monotonic.advance(0.01)
    assert case.save(mine) == case.load(mine) == [True] * 4
    assert len(case.events.seen) == 1


def test_a_keyring_that_does_not_answer_is_a_miss_and_an_outage() -> None:
    case = Case()
    case.save(owner())
    case.keys.error = KeyringUnavailableError("down")
    assert case.load(owner()) == [False] * 4
    case.keys.error = None
    assert case.load(owner()) == [False] * 4
    case.monotonic.advance(LIMITS.retry_after_s)
    assert case.load(owner()) == [True] * 4
    case.keys.error = KeyringUnavailableError("down")
    assert case.save(owner()) == [False] * 4
    assert case.events.reasons() == [("store.unavailable", "keyring.no-answer")] * 2


def test_a_retired_epoch_is_counted_and_no_outage() -> None:
    case = Case()
    case.save(owner())
    case.keys.writing_error = EpochRetiredError("ended")
    assert case.save(owner()) == [False] * 4
    assert case.events.reasons() == [("store.not-kept", "keyring.epoch-retired")]
    assert case.load(owner()) == [True] * 4


def test_blocks_without_room_are_counted_each() -> None:
    sealed = sum(LAYOUT.part_bytes(part) + 80 for part in PARTS)
    case = Case(room=Room(capacity_bytes=2 * sealed, share_bytes=sealed))
    assert case.save(owner(), HASHES[:1]) == [True]
    assert case.save(owner("b"), HASHES[:1]) == [True]
    # A guest: all room is promised to the two who are there.
    assert case.save(owner("c"), HASHES[:2]) == [False, False]
    assert case.events.reasons() == [("store.not-kept", "no-room")] * 2
    assert case.load(owner(), HASHES[:1]) == case.load(owner("b"), HASHES[:1]) == [True]
    # Within its share a tenant drops its own.
    assert case.save(owner(), HASHES[1:2]) == [True]
    assert case.load(owner(), HASHES[:2]) == [False, True]


def test_a_block_of_which_one_part_found_no_room_was_not_kept() -> None:
    case = Case()
    sizes = [LAYOUT.part_bytes(part) + 80 for part in PARTS]
    case.memory = MemoryBackend(
        Room(capacity_bytes=max(sizes) - 1, share_bytes=max(sizes) - 1), now_unix_s=case.clock
    )
    store = case.opened(case.memory)
    kept = store.scope(owner()).save(HASHES[:1], [content(HASHES[0], owner())], parts=PARTS)
    assert kept == [False]
    assert case.load(owner(), HASHES[:1]) == [False]


# Threads


def test_threads_give_what_one_thread_gives() -> None:
    large = BlockLayout(
        order="layer,plane,token,head,channel",
        dtype="float32",
        block_tokens=64,
        num_planes=2,
        num_kv_heads=4,
        head_dim=64,
        tensor_ranks=2,
        layers_of_stage=(4,),
        num_kv_groups=1,
    )
    outcomes = []
    with ThreadPoolExecutor(4) as executor:
        for chosen in (None, executor):
            case = Case(executor=chosen, layout=large)
            assert case.save(owner(), HASHES) == [True] * 4
            names = case.names()
            case.change(names[2], flip_last)
            case.memory.delete_many([names[4]])
            outcomes.append((case.load(owner()), sorted(map(str, case.events.reasons()))))
            outcomes[-1] += (case.store.scope(owner()).contains(HASHES),)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == [True, False, False, True]


class Waiting(MemoryBackend):
    """Takes nothing until every thread has sealed what it puts."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__(WIDE)
        self._barrier = barrier

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        self._barrier.wait(timeout=20)
        return super().put_many(entries)


@pytest.mark.parametrize("num_threads", [2, 5])
def test_threads_that_save_at_once_do_not_share_memory(num_threads: int) -> None:
    case = Case()
    case.clock.advance(0)
    backend = Waiting(threading.Barrier(num_threads))
    backend._now = case.clock
    store = case.opened(backend)
    owners = [owner(f"tenant {number}") for number in range(num_threads)]
    for whose in owners:
        case.keys.made(whose, 0)

    def work(whose: ScopeOwner) -> None:
        for turn in range(6):
            # Longer and shorter ones in turn: the memory grows and is used again.
            hashes = HASHES[: 1 + turn % 4]
            blocks = [content(h, whose) for h in hashes]
            assert all(store.scope(whose).save(hashes, blocks, parts=PARTS))

    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(work, owners))
    for whose in owners:
        staging = dirty(4 * BLOCK)
        loaded = store.scope(whose).load(HASHES, staging, parts=PARTS)
        assert loaded == [True] * 4
        check(staging, loaded, HASHES, whose)
    assert case.events.seen == []


def test_what_was_saved_before_stays_as_it_was_when_memory_is_used_again() -> None:
    case = Case()
    for chain_hash in HASHES:
        case.save(owner(), [chain_hash])
    assert case.load(owner()) == [True] * 4


# Events


def test_events_hold_no_name_no_key_and_no_pseudonym() -> None:
    case = Case(room=Room(capacity_bytes=4000, share_bytes=1200))
    whose = owner("a-tenant-with-a-name")
    for turn in range(3):
        case.save(whose, HASHES)
        for name in case.names()[::2]:
            case.change(name, flip_last)
        case.load(whose)
        case.memory.delete_many(case.names()[:1])
        case.load(whose)
        case.keys.writing_error = EpochRetiredError("a-tenant-with-a-name") if turn == 1 else None
        case.keys.error = KeyringUnavailableError("a-tenant-with-a-name") if turn == 2 else None
        case.save(whose, HASHES)
    kinds = {name for name, _ in case.events.seen}
    assert kinds == {"store.refused", "store.incomplete", "store.unavailable", "store.not-kept"}
    for _, fields in case.events.seen:
        assert set(fields) == {"reason"}
    text = repr(case.events.seen)
    secrets = [b"a-tenant-with-a-name", whose.tenant_id, whose.scope_id, *HASHES]
    for keys in case.keys.known.values():
        secrets += [keys.seal_key.reveal(), keys.name_key.reveal(), keys.tenant_bucket]
    for secret in secrets:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text


@pytest.mark.parametrize("method", ["get_many", "put_many", "contains_many"])
def test_a_short_answer_is_no_answer(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.save(owner())
    monkeypatch.setattr(case.backend, method, lambda asked: [])
    ask: Callable[[], list[bool]] = {
        "get_many": lambda: case.load(owner()),
        "put_many": lambda: case.save(owner()),
        "contains_many": lambda: case.store.scope(owner()).contains(HASHES),
    }[method]
    assert ask() == [False] * 4
    assert case.events.reasons() == [("store.unavailable", "store.backend-data")]
