"""A backend that is slow or fails, by plan and reproducibly."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvward.errors import StoreError
from kvward.store.backend import (
    Backend,
    Bucket,
    BucketUsage,
    Buffer,
    Capabilities,
    Entry,
    EntryName,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to some calls.

    Attributes:
        methods: Names of the port's methods; None for all of them.
        first_call: Number of the first call that meets it. Calls are counted from 1, by method.
        last_call: Number of the last one; None for all from the first on.
        delay_s: Wait before the call.
        error: Raised in place of the answer.
        is_done_first: Whether the backend does what was asked before the error is raised, as when
            an answer is lost on its way.
    """

    methods: frozenset[str] | None = None
    first_call: int = 1
    last_call: int | None = None
    delay_s: float = 0.0
    error: StoreError | None = None
    is_done_first: bool = False

    def meets(self, method: str, call: int) -> bool:
        """Tell whether a call meets this fault."""
        return (self.methods is None or method in self.methods) and (
            self.first_call <= call and (self.last_call is None or call <= self.last_call)
        )


class FaultyBackend:
    """Implements `Backend` by another one, and lets its calls meet faults.

    Args:
        backend: Does the work.
        faults: Every call meets all that apply to it, in order. May be changed between calls.
        sleep: Waits, for tests that want to count instead.
    """

    def __init__(
        self,
        backend: Backend,
        faults: Sequence[Fault] = (),
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.faults = tuple(faults)
        self._backend = backend
        self._sleep = sleep
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def capabilities(self) -> Capabilities:
        """Return what the backend can promise when nothing fails."""
        return self._backend.capabilities

    def num_calls(self, method: str) -> int:
        """Return how often a method was called, failures included."""
        with self._lock:
            return self._calls[method]

    def get_many(self, names: Sequence[EntryName]) -> list[Buffer | None]:
        """Return the bytes put under each name, unless a fault is met."""
        return self._call("get_many", lambda: self._backend.get_many(names))

    def put_many(self, entries: Sequence[Entry]) -> list[bool]:
        """Keep entries, unless a fault is met."""
        return self._call("put_many", lambda: self._backend.put_many(entries))

    def contains_many(self, names: Sequence[EntryName]) -> list[bool]:
        """Tell which names are there, unless a fault is met."""
        return self._call("contains_many", lambda: self._backend.contains_many(names))

    def delete_many(self, names: Sequence[EntryName]) -> None:
        """Forget entries, unless a fault is met."""
        self._call("delete_many", lambda: self._backend.delete_many(names))

    def purge(self, bucket: Bucket) -> int:
        """Forget a bucket, unless a fault is met."""
        return self._call("purge", lambda: self._backend.purge(bucket))

    def stats(self) -> Mapping[bytes, BucketUsage]:
        """Return the usage, unless a fault is met."""
        return self._call("stats", self._backend.stats)

    def _call(self, method: str, work: Callable[[], _T]) -> _T:
        with self._lock:
            self._calls[method] += 1
            call = self._calls[method]
        met = [fault for fault in self.faults if fault.meets(method, call)]
        for fault in met:
            if fault.delay_s > 0:
                self._sleep(fault.delay_s)
            if fault.error is not None and not fault.is_done_first:
                raise fault.error
        answer = work()
        for fault in met:
            if fault.error is not None:
                raise fault.error
        return answer
