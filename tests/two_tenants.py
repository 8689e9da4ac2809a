"""A world of two tenants over one store and one keyring, and what the first of them can see.

Run the same operations with and without those of the second tenant: what the first sees must not
differ. It sees the answers of its own calls (which blocks are there, which were kept, the bytes
that were loaded), the epochs and counts in its own receipts, the usage of its own bucket, and the
events of its own calls. Names, keys and ciphertext are random in every world and not compared.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st

from keyrings import open_keyring, owner
from kvward.blocks.layout import BlockLayout
from kvward.errors import KvwardError
from kvward.scope.keyring import (
    collect,
    erase_scope,
    erase_tenant,
    finish_purge,
    pending_purges,
    rotate,
)
from kvward.scope.owner import ScopeOwner
from kvward.seal import OVERHEAD_BYTES
from kvward.store import Backend, Bucket, Room, SealedStore, StoreLimits
from kvward.store.backends.filesystem import FilesystemBackend
from kvward.store.backends.memory import MemoryBackend
from kvward.testing.clocks import ManualClock

LAYOUT = BlockLayout(
    order="layer,plane,token,head,channel",
    dtype="int8",
    block_tokens=4,
    num_planes=2,
    num_kv_heads=2,
    head_dim=2,
    tensor_ranks=2,
    layers_of_stage=(1,),
    num_kv_groups=1,
)
BLOCK_BYTES = LAYOUT.block_bytes
SEALED_BYTES = BLOCK_BYTES + 2 * OVERHEAD_BYTES
MAX_OPERATIONS = 24
MAX_BLOCKS = 3
FLOOD_BLOCKS = 200
# The first tenant cannot leave its share, whatever it saves; the second fills the rest and more.
ROOM = Room(
    capacity_bytes=2 * MAX_OPERATIONS * MAX_BLOCKS * SEALED_BYTES + 10 * SEALED_BYTES,
    share_bytes=MAX_OPERATIONS * MAX_BLOCKS * SEALED_BYTES,
)
CONVERSATIONS = (b"one", b"two")
HOSTILE_NAMES = (
    "b",
    "A",
    "a ",
    "a\x00",
    "a/../a",
    "%61",
    "ａ",
    "a" * 500,
    "'; DROP TABLE entries;",
)
OpenBackend = Callable[[Path, Callable[[], float]], Backend]
Seen = list[Any]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One call of one tenant; `whose` is None for what happens to both."""

    whose: str | None
    kind: str
    conversation: bytes = b"one"
    blocks: tuple[int, ...] = ()
    amount: int = 0
    is_stale: bool = False


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, tuple[tuple[str, str | int], ...]]] = []

    def emit(self, name: str, /, **fields: str | int) -> None:
        self.seen.append((name, tuple(sorted(fields.items()))))


def open_memory(folder: Path, clock: Callable[[], float]) -> Backend:
    return MemoryBackend(ROOM, now_unix_s=clock)


def open_filesystem(folder: Path, clock: Callable[[], float]) -> Backend:
    return FilesystemBackend(folder / "store", ROOM, now_unix_s=clock)


class World:
    """One run. `second` is the name of the second tenant."""

    def __init__(self, folder: Path, open_backend: OpenBackend, *, second: str) -> None:
        self._clock = ManualClock()
        self._folder = folder
        self._names = {"first": "a", "second": second}
        self.keyring = open_keyring(("sqlite", str(folder / "keyring.db")), self._clock)
        self.backend = open_backend(folder, self._clock)
        self._events = Events()
        self._store = SealedStore(
            self.backend,
            self.keyring,
            layout=LAYOUT,
            limits=StoreLimits(max_age_s=100, clock_skew_s=0, retry_after_s=5.0),
            events=self._events,
            now_unix_s=self._clock,
            monotonic_s=self._clock,
        )
        self._owners: dict[tuple[str, bytes], ScopeOwner] = {}

    def close(self) -> None:
        self.keyring.database.close()
        close = getattr(self.backend, "close", None)
        if close is not None:
            close()

    def run(self, operation: Operation) -> list[Any]:
        """Carry out an operation and return what its tenant sees of it."""
        self._events.seen = []
        try:
            answer = getattr(self, "_" + operation.kind.replace("-", "_"))(operation)
        except KvwardError as exc:
            answer = exc.code
        if operation.whose is None:
            return []
        return [operation, answer, self._events.seen, self._usage(operation.whose)]

    def _usage(self, whose: str) -> tuple[int, int, int]:
        # After a sweep: entries past their time are counted until then, as the port says.
        sweep = getattr(self.backend, "sweep", None)
        if sweep is None:
            self.backend.put_many([])
        else:
            sweep()
        tenant = self._names[whose]
        with self.keyring.database.transaction() as transaction:
            row = self.keyring.find_tenant(transaction, self.keyring.tenant_id(tenant))
        if row is None:
            return (0, 0, 0)
        usage = self.backend.stats().get(self.keyring.tenant_bucket(row.tenant_id))
        return (
            (0, 0, 0)
            if usage is None
            else (usage.num_entries, usage.num_bytes, usage.evicted_entries)
        )

    def _scoped(self, operation: Operation) -> Any:
        assert operation.whose is not None
        place = (operation.whose, operation.conversation)
        if place not in self._owners or not operation.is_stale:
            tenant = self._names[operation.whose]
            self._owners[place] = owner(self.keyring, tenant, operation.conversation)
        return self._store.scope(self._owners[place])

    def _save(self, operation: Operation) -> Any:
        blocks = [_content(operation, number) for number in operation.blocks]
        return self._scoped(operation).save(_hashes(operation), blocks, parts=LAYOUT.parts)

    def _load(self, operation: Operation) -> Any:
        staging = memoryview(bytearray(b"\xff" * (len(operation.blocks) * BLOCK_BYTES)))
        there = self._scoped(operation).load(_hashes(operation), staging, parts=LAYOUT.parts)
        return there, bytes(staging)

    def _contains(self, operation: Operation) -> Any:
        return self._scoped(operation).contains(_hashes(operation))

    def _rotate(self, operation: Operation) -> Any:
        tenant = self._names[str(operation.whose)]
        return rotate(self.keyring, tenant, retire_old=bool(operation.amount % 2))

    def _erase_scope(self, operation: Operation) -> Any:
        tenant = self._names[str(operation.whose)]
        scope_id = owner(self.keyring, tenant, operation.conversation).scope_id
        receipt = erase_scope(self.keyring, tenant, scope_id)
        self._purge()
        return receipt.last_epoch, receipt.keys_destroyed, receipt.effective_unix_s

    def _erase_tenant(self, operation: Operation) -> Any:
        receipt = erase_tenant(self.keyring, self._names[str(operation.whose)])
        self._purge()
        return receipt.last_epoch, receipt.keys_destroyed, receipt.effective_unix_s

    def _purge(self) -> None:
        for purge in pending_purges(self.keyring):
            self.backend.purge(Bucket(tenant=purge.tenant_bucket, scope=purge.scope_bucket))
            finish_purge(self.keyring, purge)

    def _collect(self, operation: Operation) -> None:
        collect(self.keyring)

    def _wait(self, operation: Operation) -> None:
        self._clock.advance(operation.amount)

    def _flood(self, operation: Operation) -> None:
        scoped = self._scoped(operation)
        for start in range(0, FLOOD_BLOCKS, 50):
            numbers = [operation.amount * FLOOD_BLOCKS + start + place for place in range(50)]
            hashes = [hashlib.sha256(b"flood%d" % number).digest() for number in numbers]
            scoped.save(hashes, [bytes(BLOCK_BYTES)] * 50, parts=LAYOUT.parts)

    def _corrupt(self, operation: Operation) -> None:
        """Change a bit of everything that the tenant has stored."""
        keys = self.keyring.writing_keys(
            owner(self.keyring, self._names[str(operation.whose)], operation.conversation)
        )
        if isinstance(self.backend, MemoryBackend):
            for name, (data, expires) in list(self.backend._entries.items()):
                if name.tenant == keys.tenant_bucket:
                    self.backend._entries[name] = (_flipped(data), expires)
        elif isinstance(self.backend, FilesystemBackend):
            folder = self._folder / "store" / "entries" / keys.tenant_bucket.hex()
            for path in folder.glob("*/*"):
                status = path.stat()
                path.write_bytes(_flipped(path.read_bytes()))
                os.utime(path, (status.st_atime, status.st_mtime))


def run_world(open_backend: OpenBackend, operations: Sequence[Operation], *, second: str) -> Seen:
    """Return what the first tenant sees of a run, in order."""
    seen: Seen = []
    with tempfile.TemporaryDirectory(prefix="kvward-world-") as name:
        world = World(Path(name), open_backend, second=second)
        try:
            for operation in operations:
                answer = world.run(operation)
                if operation.whose == "first":
                    seen.append(answer)
        finally:
            world.close()
    return seen


def without_second(operations: Sequence[Operation]) -> list[Operation]:
    return [operation for operation in operations if operation.whose != "second"]


@st.composite
def operation_lists(draw: st.DrawFn) -> list[Operation]:
    """Both tenants save, load and end things; the second one floods and finds its bytes changed.

    Kinds are weighted, so that most lists save something, flood the store and load it again.
    """
    random = Random(draw(st.integers(0, 2**32)))
    length = draw(st.integers(8, MAX_OPERATIONS))
    return [_draw_operation(random) for _ in range(length)]


def _draw_operation(random: Random) -> Operation:
    whose = random.choices(("first", "second", None), (55, 35, 10))[0]
    weights = {
        "first": {"save": 35, "load": 35, "contains": 10, "rotate": 6, "erase-scope": 6,
                  "erase-tenant": 3},
        "second": {"flood": 30, "save": 20, "load": 10, "contains": 5, "corrupt": 15,
                   "rotate": 5, "erase-scope": 8, "erase-tenant": 8},
        None: {"wait": 70, "collect": 30},
    }[whose]  # fmt: skip
    kind = random.choices(list(weights), list(weights.values()))[0]
    return Operation(
        whose=whose,
        kind=kind,
        conversation=random.choice(CONVERSATIONS),
        blocks=tuple(random.sample(range(6), random.randint(0, MAX_BLOCKS))),
        amount=random.randint(0, 60 if whose is None else 3),
        is_stale=random.random() < 0.15,
    )


def _hashes(operation: Operation) -> list[bytes]:
    # The same for both tenants: equal tokens have equal names before they are keyed.
    return [
        hashlib.sha256(operation.conversation + b"%d" % number).digest()
        for number in operation.blocks
    ]


def _content(operation: Operation, number: int) -> bytes:
    seed = b"%s %d %d" % (str(operation.whose).encode(), number, operation.amount)
    return hashlib.shake_256(seed).digest(BLOCK_BYTES)


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1]) if data else data
