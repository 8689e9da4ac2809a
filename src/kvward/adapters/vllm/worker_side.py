"""The half of the connector that lives beside the engine's pages.

Saving copies full blocks in the step that filled them, so that no page is held for it; sealing and
storing happen in threads, within a bound. Loading fetches and opens in threads into private memory;
only the engine's own thread writes into pages, between steps, and only what has opened. So a load
that comes too late, or after its request has gone, writes nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from kvward.adapters.vllm.transfers import PlacedBlock, StepPlan, by_owner
from kvward.blocks.layout import BlockLayout
from kvward.events import EventSink
from kvward.scope.owner import ScopeOwner
from kvward.store import SealedStore

_IDLE_WAIT_S = 0.002
# Pieces of this size are moved, sealed and opened at once: small enough that allocators give the
# same memory again instead of fresh pages, which cost more than the cipher does.
_PIECE_BYTES = 8 << 20


class EnginePages(Protocol):
    """The engine's KV pages, in its own thread."""

    def gather(self, block_ids: Sequence[int]) -> memoryview:
        """Return a copy of blocks, one after the other."""

    def scatter(self, block_ids: Sequence[int], staging: memoryview) -> None:
        """Write authenticated blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What a load brought: private memory, and for each block whether it opened."""

    staging: memoryview
    opened: list[bool]


@dataclass(slots=True, kw_only=True)
class _Loading:
    """A request's load on its way, in pieces, so that no long prompt fills the memory at once.

    Attributes:
        pieces: What is still to come, in the order of the prompt.
    """

    request_id: str
    pieces: deque[tuple[Sequence[PlacedBlock], Future[_Loaded]]]
    give_up_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResults:
    """Loads that have ended since the last call.

    Attributes:
        request_ids: Whose.
        failed_block_ids: Pages that hold nothing valid.
    """

    request_ids: set[str]
    failed_block_ids: set[int]


class WorkerSide:
    """Moves the blocks of one worker. Methods are called by the engine's thread only.

    Args:
        events: Takes "vllm.save-dropped", "vllm.load-late", "vllm.load-refused",
            "vllm.load-placed", "vllm.batch-kept" and "vllm.transfer-failed".
        num_threads: Loads at once, and as many saves.
        load_s: Longest a load may take.
        pending_bytes: Of copies that wait to be sealed.
    """

    def __init__(
        self,
        store: SealedStore,
        layout: BlockLayout,
        pages: EnginePages,
        *,
        events: EventSink,
        num_threads: int,
        load_s: float,
        pending_bytes: int,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._layout = layout
        self._pages = pages
        self._events = events
        self._load_s = load_s
        self._room = pending_bytes
        self._piece_blocks = max(1, min(_PIECE_BYTES, pending_bytes) // layout.block_bytes)
        self._clock = monotonic_s
        self._lock = threading.Lock()
        self._loading: list[_Loading] = []
        self._loaders = ThreadPoolExecutor(num_threads, thread_name_prefix="kvward-load")
        self._savers = ThreadPoolExecutor(num_threads, thread_name_prefix="kvward-save")

    def start_loads(self, plan: StepPlan) -> None:
        """Begin what is to be loaded."""
        for job in plan.loads:
            runs = [
                job.blocks[start : start + self._piece_blocks]
                for start in range(0, len(job.blocks), self._piece_blocks)
            ]
            self._loading.append(
                _Loading(
                    request_id=job.request_id,
                    pieces=deque((run, self._loaders.submit(self._load, run)) for run in runs),
                    give_up_s=self._clock() + self._load_s,
                )
            )

    def save(self, plan: StepPlan) -> None:
        """Copy what this step has filled, and have it kept."""
        for start in range(0, len(plan.saves), self._piece_blocks):
            blocks = plan.saves[start : start + self._piece_blocks]
            num_bytes = len(blocks) * self._layout.block_bytes
            with self._lock:
                has_room = self._room >= num_bytes
                if has_room:
                    self._room -= num_bytes
            if not has_room:
                self._events.emit("vllm.save-dropped")
                continue
            try:
                copy = self._pages.gather([block.block_id for block in blocks])
                self._savers.submit(self._keep, blocks, copy)
            except Exception:  # noqa: BLE001 - not to keep something costs time and nothing else
                self._give_back(num_bytes)
                self._events.emit("vllm.transfer-failed")

    def collect(self, plan: StepPlan) -> LoadResults:
        """Write what has been opened into its pages, and tell which loads have ended."""
        if plan.is_idle and self._loading:
            # Nothing else is to be computed: wait here, not by spinning through empty steps.
            wait(
                [loading.pieces[0][1] for loading in self._loading],
                timeout=_IDLE_WAIT_S,
                return_when=FIRST_COMPLETED,
            )
        results = LoadResults(request_ids=set(), failed_block_ids=set())
        for loading in list(self._loading):
            while loading.pieces and loading.pieces[0][1].done():
                blocks, future = loading.pieces.popleft()
                if not self._place(blocks, future, results):
                    self._give_up(loading, results)
            if loading.pieces and self._clock() >= loading.give_up_s:
                self._events.emit("vllm.load-late")
                self._give_up(loading, results)
            if not loading.pieces:
                results.request_ids.add(loading.request_id)
                self._loading.remove(loading)
        return results

    def close(self) -> None:
        """Keep what is still waiting to be kept, and end."""
        self._loaders.shutdown(wait=False, cancel_futures=True)
        self._savers.shutdown(wait=True)

    @staticmethod
    def _give_up(loading: _Loading, results: LoadResults) -> None:
        """Take nothing more of a load; what its threads still bring is never looked at."""
        for blocks, future in loading.pieces:
            future.cancel()
            results.failed_block_ids.update(block.block_id for block in blocks)
        loading.pieces.clear()

    def _place(
        self, blocks: Sequence[PlacedBlock], future: Future[_Loaded], results: LoadResults
    ) -> bool:
        """Write what has opened into its pages; tell whether that was all of it."""
        try:
            loaded = future.result()
        except Exception:  # noqa: BLE001 - whatever failed, these blocks are computed
            self._events.emit("vllm.transfer-failed")
            results.failed_block_ids.update(block.block_id for block in blocks)
            return False
        num_valid = next(
            (number for number, opened in enumerate(loaded.opened) if not opened), len(blocks)
        )
        if num_valid:
            # SECURITY: up to the first block that did not open; what follows is worth nothing
            # without it, and nothing of it reaches a page.
            self._pages.scatter(
                [block.block_id for block in blocks[:num_valid]],
                loaded.staging[: num_valid * self._layout.block_bytes],
            )
            self._events.emit("vllm.load-placed")
        if num_valid < len(blocks):
            self._events.emit("vllm.load-refused")
            results.failed_block_ids.update(block.block_id for block in blocks[num_valid:])
        return num_valid == len(blocks)

    def _load(self, run: Sequence[PlacedBlock]) -> _Loaded:
        size = self._layout.block_bytes
        staging = memoryview(bytearray(len(run) * size))
        opened: list[bool] = []
        for owner, blocks in by_owner(run):
            room = staging[len(opened) * size : (len(opened) + len(blocks)) * size]
            opened += self._open(owner, [block.chain_hash for block in blocks], room)
        return _Loaded(staging=staging, opened=opened)

    def _open(self, owner: ScopeOwner, hashes: Sequence[bytes], room: memoryview) -> list[bool]:
        return self._store.scope(owner).load(hashes, room, parts=self._layout.parts)

    def _keep(self, blocks: Sequence[PlacedBlock], copy: memoryview) -> None:
        size = self._layout.block_bytes
        try:
            start = 0
            for owner, run in by_owner(blocks):
                self._store.scope(owner).save(
                    [block.chain_hash for block in run],
                    [
                        copy[number * size : (number + 1) * size]
                        for number in range(start, start + len(run))
                    ],
                    parts=self._layout.parts,
                )
                start += len(run)
            self._events.emit("vllm.batch-kept")
        except Exception:  # noqa: BLE001 - what cannot be kept is computed again some day
            self._events.emit("vllm.transfer-failed")
        finally:
            self._give_back(len(copy))

    def _give_back(self, num_bytes: int) -> None:
        with self._lock:
            self._room += num_bytes
