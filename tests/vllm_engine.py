"""A stand-in for vLLM's scheduler, cache manager and worker, as far as the connector meets them.

It calls the connector's two halves in the order in which vLLM 0.32 does (`Scheduler.add_request`,
`schedule`, `update_from_output`). A page's content follows from the tokens that were computed for
it, so that whoever is served a block of other tokens, or of nobody's, is seen.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from keyrings import ROOT, Clock, open_keyring
from kvward.adapters.vllm.adapter_files import AdapterFiles
from kvward.adapters.vllm.admission import Admissions, PublicPrefix
from kvward.adapters.vllm.lookups import LookUps
from kvward.adapters.vllm.scheduler_side import SchedulerSide
from kvward.adapters.vllm.transfers import StepPlan
from kvward.adapters.vllm.worker_side import WorkerSide
from kvward.blocks.manifest import AdapterIdentity
from kvward.events import EventCounter
from kvward.scope import Scope, ScopeIssuer
from kvward.scope.owner import OWNER_FIELD, verify_owner
from kvward.scope.spans import SPANS_FIELD, Span, digest_tokens, encode_spans
from kvward.store import Backend, Room, SealedStore, StoreLimits
from kvward.store.backends.memory import MemoryBackend
from kvward.terms import SharingLevel
from two_tenants import BLOCK_BYTES, LAYOUT

BLOCK = LAYOUT.block_tokens
NOW = 1_800_000_000
ROOM = Room(capacity_bytes=1 << 20, share_bytes=1 << 17)
_EMPTY = bytes(BLOCK_BYTES)
_LONGEST_S = 20.0


class ReadOnlyList:
    """As vLLM shows a request's tokens: to be read and sliced, never changed."""

    def __init__(self, items: list[int]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]


class FakeRequest:
    """What the connector reads of vLLM's `Request`."""

    def __init__(
        self,
        request_id: str,
        token_ids: Sequence[int],
        *,
        salt: str | None,
        params: Any = None,
        features: Sequence[Any] = (),
        lora: Any = None,
        prompt_embeds: Any = None,
        prompt_is_token_ids: list[bool] | None = None,
        skip_reading: bool = False,
        resumable: bool = False,
        max_tokens: int = 1,
    ) -> None:
        self.request_id = request_id
        self.cache_salt = salt
        self.kv_transfer_params = params
        self.mm_features = list(features)
        self.lora_request = lora
        self.prompt_embeds = prompt_embeds
        self.prompt_is_token_ids = prompt_is_token_ids
        self.skip_reading_prefix_cache = skip_reading
        self.resumable = resumable
        self.max_tokens = max_tokens
        self.num_computed_tokens = 0
        self.num_prompt_tokens = len(token_ids)
        self._all_token_ids = list(token_ids)
        self.all_token_ids = ReadOnlyList(self._all_token_ids)
        self._block_hasher: Callable[[Any], list[bytes]] | None = None
        self.block_hashes: list[bytes] = [b"vLLM's own"] * (len(token_ids) // BLOCK)
        # Ours:
        self.status = "waiting"
        self.blocks: list[int] = []
        self.num_local_hits = 0
        self.num_loaded_tokens = 0

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)

    def append_output_token_ids(self, token_id: int) -> None:
        self._all_token_ids.append(token_id)
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))

    def content(self, number: int) -> bytes:
        """What a page has to hold that was computed for a block of this request."""
        return content_of(self._all_token_ids[: (number + 1) * BLOCK])


def content_of(token_ids: Sequence[int]) -> bytes:
    return hashlib.shake_256(repr(list(token_ids)).encode()).digest(BLOCK_BYTES)


def feature(first_token: int, num_tokens: int, *, identifier: str, modality: str = "image") -> Any:
    """As vLLM describes something in a prompt that is not text."""
    return SimpleNamespace(
        modality=modality,
        identifier=identifier,
        mm_position=SimpleNamespace(offset=first_token, length=num_tokens),
    )


class FakePages:
    """Implements `EnginePages` in bytes."""

    def __init__(self, num_blocks: int) -> None:
        self.pages = [_EMPTY] * num_blocks
        self.scattered: list[tuple[int, ...]] = []

    def gather(self, block_ids: Sequence[int]) -> memoryview:
        return memoryview(bytearray(b"".join(self.pages[number] for number in block_ids)))

    def scatter(self, block_ids: Sequence[int], staging: memoryview) -> None:
        assert len(staging) == len(block_ids) * BLOCK_BYTES
        self.scattered.append(tuple(block_ids))
        for place, number in enumerate(block_ids):
            self.pages[number] = bytes(staging[place * BLOCK_BYTES : (place + 1) * BLOCK_BYTES])


@dataclass(kw_only=True)
class Ward:
    """Keys, store and public prefixes of one deployment, which several engines may share."""

    folder: Path
    backend: Backend = field(default_factory=lambda: MemoryBackend(ROOM, now_unix_s=Clock()))
    public: list[PublicPrefix] = field(default_factory=list)
    events: EventCounter = field(default_factory=EventCounter)

    def __post_init__(self) -> None:
        self.keyring = open_keyring(("sqlite", str(self.folder / "keyring.db")), Clock(), root=ROOT)
        self.issuer = ScopeIssuer(
            self.keyring, self.keyring.token_key, epochs=self.keyring, deployment="d"
        )
        self.store = SealedStore(
            self.backend,
            self.keyring,
            layout=LAYOUT,
            limits=StoreLimits(max_age_s=100, clock_skew_s=0, retry_after_s=0.01),
            events=self.events,
            now_unix_s=Clock(),
        )

    def close(self) -> None:
        self.keyring.database.close()

    def scope(self, tenant: str, name: str | None = "c") -> Scope:
        """Return the scope of a conversation; of the tenant without a name."""
        if name is None:
            return self.issuer.current(tenant=tenant, level=SharingLevel.TENANT, subject=b"")
        subject = self.issuer.named_subject(tenant, name)
        return self.issuer.current(tenant=tenant, level=SharingLevel.CONVERSATION, subject=subject)

    def token(self, tenant: str, name: str | None = "c") -> str:
        return self.issuer.token(self.scope(tenant, name))

    def params(
        self,
        tenant: str,
        name: str | None = "c",
        *,
        owner: bool = True,
        span: Sequence[int] = (),
        span_of: str | None = None,
    ) -> dict[str, object]:
        """Return what the gateway puts beside the token."""
        scope = self.scope(tenant, name)
        token = self.issuer.token(scope)
        beside: dict[str, object] = {}
        if owner:
            beside[OWNER_FIELD] = self.issuer.owner_tag(scope, token=token)
        if span:
            wide = self.token(span_of or tenant, None)
            beside[SPANS_FIELD] = encode_spans(
                self.issuer.token_key,
                token=token,
                spans=[Span(token=wide, end_tokens=len(span), digest=digest_tokens(span))],
                expires_unix_s=NOW + 60,
                nonce=bytes(16),
            )
        return beside

    def register(self, name: str, token_ids: Sequence[int], *, stored: bool = True) -> str:
        """Register a public prefix, and return its token."""
        subject = name.encode() + b"\0" + digest_tokens(token_ids)
        scope = self.issuer.current(
            tenant="kvward/public", level=SharingLevel.PUBLIC, subject=subject
        )
        token = self.issuer.token(scope)
        tag = self.issuer.owner_tag(scope, token=token)
        owner = verify_owner(tag, token=token, token_key=self.issuer.token_key)
        self.public.append(
            PublicPrefix(token_ids=tuple(token_ids), token=token, owner=owner if stored else None)
        )
        return token

    def request(
        self,
        token_ids: Sequence[int],
        tenant: str = "a",
        name: str | None = "c",
        *,
        params: Mapping[str, object] | None = None,
        **more: Any,
    ) -> FakeRequest:
        """Return a request as the gateway would send it."""
        self._number = getattr(self, "_number", 0) + 1
        return FakeRequest(
            f"request-{self._number}",
            token_ids,
            salt=self.token(tenant, name),
            params=self.params(tenant, name) if params is None else params,
            **more,
        )


class FakeEngine:
    """One engine: a scheduler, its prefix cache, a worker and its pages."""

    def __init__(
        self,
        ward: Ward,
        *,
        num_blocks: int = 256,
        step_tokens: int = 1 << 20,
        has_store: bool = True,
        public: Callable[[], Sequence[PublicPrefix]] | None = None,
        store: Any = None,
        lookup_s: float = 10.0,
        load_s: float = 10.0,
        adapters: AdapterFiles | None = None,
        manifest: bytes = b"m" * 32,
    ) -> None:
        self.events = ward.events
        self.pages = FakePages(num_blocks)
        self.cache: dict[bytes, int] = {}
        self.has_room = True
        self.plans: list[StepPlan] = []
        self._step_tokens = step_tokens
        self._free = list(range(num_blocks))
        self._waiting: list[FakeRequest] = []
        self._running: list[FakeRequest] = []
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self.look_ups: LookUps | None = None
        self.worker: WorkerSide | None = None
        used = ward.store if store is None else store
        if has_store:
            self.look_ups = LookUps(used, events=self.events, num_threads=4, wait_s=lookup_s)
            self.worker = WorkerSide(
                used,
                LAYOUT,
                self.pages,
                events=self.events,
                num_threads=2,
                load_s=load_s,
                pending_bytes=1 << 20,
            )
        self.side = SchedulerSide(
            Admissions(
                ward.issuer.token_key,
                block_tokens=BLOCK,
                public=public or (lambda: tuple(ward.public)),
                events=self.events,
                now_unix_s=lambda: float(NOW),
            ),
            manifest_digest=lambda adapter: _with_adapter(manifest, adapter),
            adapters=adapters
            or AdapterFiles(started_unix_s=0, are_immutable=False, events=self.events),
            look_ups=self.look_ups,
            block_tokens=BLOCK,
            events=self.events,
        )

    def close(self) -> None:
        if self.look_ups is not None:
            self.look_ups.close()
        if self.worker is not None:
            self.worker.close()

    def add(self, request: FakeRequest) -> FakeRequest:
        """As `Scheduler.add_request`."""
        self._waiting.append(request)
        self.side.arrive(request)
        return request

    def run(self, *requests: FakeRequest) -> None:
        """Serve requests to their end, and wait until what they leave is kept."""
        for request in requests:
            self.add(request)
        self.step_until(lambda: all(request.status == "finished" for request in requests))
        self.settle()

    def step_until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + _LONGEST_S
        while not done():
            assert time.monotonic() < end, "a request is never served"
            self.step()

    def settle(self) -> None:
        """Wait until all copies are sealed."""
        if self.worker is not None:
            end = time.monotonic() + _LONGEST_S
            while self.worker._room != 1 << 20:
                assert time.monotonic() < end, "a copy is never kept"
                time.sleep(0.001)

    def step(self) -> StepPlan:
        scheduled: dict[str, int] = {}
        left = self._step_tokens
        for request in list(self._running):
            left -= self._schedule(request, scheduled, left)
        for request in list(self._waiting):
            if not self._admit(request):
                break
            if request.status == "running":
                left -= self._schedule(request, scheduled, left)
        output = SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled.values()),
            num_scheduled_tokens=scheduled,
            kv_connector_block_state=SimpleNamespace(
                resolve_block_ids=lambda request_id: (self._by_id(request_id).blocks,)
            ),
        )
        plan = self.side.plan(output)
        self.plans.append(plan)
        for request_id, num_tokens in scheduled.items():
            self._by_id(request_id).num_computed_tokens += num_tokens
        self._execute(plan, scheduled)
        return plan

    def preempt(self, request: FakeRequest) -> None:
        """As `Scheduler._preempt_request`."""
        self._running.remove(request)
        self._release(request)
        request.status = "waiting"
        request.num_computed_tokens = 0
        self._waiting.insert(0, request)

    def abort(self, request: FakeRequest) -> None:
        """As `Scheduler.finish_requests`: pages of a load under way stay until it has ended."""
        is_loading = request.status == "loading" and request.request_id not in self._received
        request.status = "finished"
        self.side.finish(request)
        for queue in (self._waiting, self._running):
            if request in queue:
                queue.remove(request)
        if not is_loading:
            self._release(request)

    def forget(self) -> None:
        """Empty the engine's own prefix cache."""
        self.cache.clear()

    def _admit(self, request: FakeRequest) -> bool:
        """Take a request out of the queue if it can be; tell whether to look at the next."""
        if request.status == "loading":
            if request.request_id not in self._received:
                return True
            self._received.remove(request.request_id)
            if request.request_id in self._failed:
                self._failed.remove(request.request_id)
                if not request.num_computed_tokens:
                    self._release(request)
            self._remember(request, request.num_computed_tokens)
            request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
            request.status = "waiting"
        external, is_asynchronous, local = 0, False, 0
        if request.num_computed_tokens == 0:
            hits = [] if request.skip_reading_prefix_cache else self._hits(request)
            local = len(hits) * BLOCK
            found, is_asynchronous = self.side.match(request, local)
            if request.skip_reading_prefix_cache:
                found, is_asynchronous = 0, False
            if found is None:
                return True
            external = found
            if not self.has_room:
                return False
            request.blocks = hits
            request.num_local_hits = len(hits)
            for number, block_id in enumerate(hits):
                # Empty where the same step is about to compute it for another request.
                there = self.pages.pages[block_id]
                assert there in {_EMPTY, request.content(number)}, "a foreign block"
        self._grow(request, request.num_tokens)
        self.side.allocate(request, request.blocks, external)
        if is_asynchronous:
            request.num_computed_tokens = local + external
            request.num_loaded_tokens = external
            request.status = "loading"
            return True
        if local:
            request.num_computed_tokens = local
        self._waiting.remove(request)
        self._running.append(request)
        request.status = "running"
        return True

    def _schedule(self, request: FakeRequest, scheduled: dict[str, int], left: int) -> int:
        num_tokens = min(request.num_tokens - request.num_computed_tokens, left)
        if num_tokens > 0:
            self._grow(request, request.num_tokens)
            self._remember(request, request.num_computed_tokens + num_tokens)
            scheduled[request.request_id] = num_tokens
        return max(0, num_tokens)

    def _execute(self, plan: StepPlan, scheduled: dict[str, int]) -> None:
        if self.worker is not None:
            self.worker.start_loads(plan)
        for request_id in scheduled:
            request = self._by_id(request_id)
            for number in range(request.num_computed_tokens // BLOCK):
                # Whatever a step computes follows from what was there before it.
                block_id = request.blocks[number]
                if self.pages.pages[block_id] == _EMPTY:
                    self.pages.pages[block_id] = request.content(number)
                assert self.pages.pages[block_id] == request.content(number), "a foreign block"
        if self.worker is not None:
            self.worker.save(plan)
            results = self.worker.collect(plan)
            self._note_loads(results.request_ids, results.failed_block_ids)
        for request_id in scheduled:
            request = self._by_id(request_id)
            if request.num_computed_tokens == request.num_tokens:
                request.append_output_token_ids(request.num_tokens % 7)
                if request.num_tokens - request.num_prompt_tokens >= request.max_tokens:
                    request.status = "finished"
                    self._running.remove(request)
                    self.side.finish(request)
                    self._release(request)

    def _note_loads(self, request_ids: set[str], failed: set[int]) -> None:
        for request in self._waiting:
            if request.status != "loading":
                continue
            for number, block_id in enumerate(request.blocks):
                if number * BLOCK < request.num_computed_tokens and block_id in failed:
                    request.num_computed_tokens = number * BLOCK
                    self._failed.add(request.request_id)
                    break
        for request_id in request_ids:
            self.side.loaded(request_id)
            self._received.add(request_id)

    def _hits(self, request: FakeRequest) -> list[int]:
        hits = []
        for name in request.block_hashes[: (request.num_tokens - 1) // BLOCK]:
            if name not in self.cache:
                break
            hits.append(self.cache[name])
        return hits

    def _remember(self, request: FakeRequest, num_tokens: int) -> None:
        for number in range(min(num_tokens // BLOCK, len(request.block_hashes))):
            self.cache.setdefault(request.block_hashes[number], request.blocks[number])

    def _grow(self, request: FakeRequest, num_tokens: int) -> None:
        while len(request.blocks) * BLOCK < num_tokens:
            taken = set(self.cache.values())
            for other in (*self._running, *self._waiting):
                taken.update(other.blocks)
            block_id = next(number for number in self._free if number not in taken)
            self._free.remove(block_id)
            self.pages.pages[block_id] = _EMPTY
            request.blocks.append(block_id)

    def _release(self, request: FakeRequest) -> None:
        self._free += [number for number in request.blocks if number not in self._free]
        request.blocks = []

    def _by_id(self, request_id: str) -> FakeRequest:
        return next(
            request
            for request in (*self._running, *self._waiting)
            if request.request_id == request_id
        )


def _with_adapter(manifest: bytes, adapter: AdapterIdentity | None) -> bytes:
    return manifest if adapter is None else hashlib.sha256(manifest + adapter.digest).digest()
