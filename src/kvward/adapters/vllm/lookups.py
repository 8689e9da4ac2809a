"""Ask the store what it has, beside the scheduler's loop and never in it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvward.events import EventSink
from kvward.scope.owner import ScopeOwner
from kvward.store import SealedStore

_NOBODY = b""


@dataclass(slots=True, kw_only=True)
class LookUp:
    """One request's question.

    Attributes:
        found: For each block asked for whether it seems to be there; None until answered.
        give_up_s: On the monotonic clock; from then on the answer counts as none.
    """

    give_up_s: float
    found: list[bool] | None = None


class LookUps:
    """A bounded pool of look-ups; no tenant gets more than half of it.

    So whoever waits for a store that hangs for one tenant is that tenant.

    Args:
        events: Takes "vllm.lookup-late", "vllm.lookup-full" and "vllm.lookup-failed".
        num_threads: Look-ups at once.
        wait_s: Longest a request waits for its answer.
    """

    def __init__(
        self,
        store: SealedStore,
        *,
        events: EventSink,
        num_threads: int,
        wait_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._events = events
        self._share = max(1, num_threads // 2)
        self._wait_s = wait_s
        self._clock = monotonic_s
        self._lock = threading.Lock()
        self._running: Counter[bytes] = Counter()
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="kvward-lookup")

    def ask(
        self,
        questions: Sequence[tuple[ScopeOwner, Sequence[bytes]]],
        *,
        tenant_id: bytes | None,
    ) -> LookUp:
        """Ask for blocks, in order; each owner's with one question.

        Args:
            questions: Owners and the chain hashes of their blocks. Of one tenant, or public.
            tenant_id: On whose account, whichever blocks are asked for.
        """
        tenant = _NOBODY if tenant_id is None else tenant_id
        look_up = LookUp(give_up_s=self._clock() + self._wait_s)
        with self._lock:
            if self._running[tenant] >= self._share:
                self._events.emit("vllm.lookup-full")
                look_up.found = []
                return look_up
            self._running[tenant] += 1
        self._pool.submit(self._answer, look_up, tenant, questions)
        return look_up

    def answer(self, look_up: LookUp) -> list[bool] | None:
        """Return what was found, nothing when it took too long, or None while it may still come."""
        if look_up.found is not None:
            return look_up.found
        if self._clock() < look_up.give_up_s:
            return None
        self._events.emit("vllm.lookup-late")
        look_up.found = []
        return look_up.found

    def close(self) -> None:
        """Start no more look-ups."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _answer(
        self,
        look_up: LookUp,
        tenant: bytes,
        questions: Sequence[tuple[ScopeOwner, Sequence[bytes]]],
    ) -> None:
        found: list[bool] = []
        try:
            for owner, chain_hashes in questions:
                found += self._store.scope(owner).contains(chain_hashes)
        except Exception:  # noqa: BLE001 - a look-up that fails is a miss, whatever failed
            self._events.emit("vllm.lookup-failed")
        finally:
            with self._lock:
                self._running[tenant] -= 1
        if look_up.found is None:
            look_up.found = found
