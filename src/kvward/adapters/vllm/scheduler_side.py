"""The half of the connector that lives beside vLLM's scheduler. Knows no keys and moves no bytes.

It names every request's blocks before the scheduler looks anything up, asks the store what it has,
and plans transfers. vLLM's objects are used by attribute, so that this module can be tested without
an engine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvward.adapters.vllm.adapter_files import AdapterFiles, AdapterRequest
from kvward.adapters.vllm.admission import Admission, Admissions, Arrival
from kvward.adapters.vllm.lookups import LookUp, LookUps
from kvward.adapters.vllm.naming import RequestNames
from kvward.adapters.vllm.transfers import LoadJob, PlacedBlock, StepPlan
from kvward.blocks.inputs import PromptInput
from kvward.blocks.manifest import AdapterIdentity
from kvward.events import EventSink
from kvward.scope.owner import ScopeOwner

# BLAKE3, SHA-256 or longer, as vLLM computes it; in front of it may stand the adapter's name.
_FULL_HASH = re.compile(r"(?:[^\n]*:)?[0-9a-f]{64,128}")


@dataclass(slots=True, kw_only=True)
class _Tracked:
    """What is known of a request between its arrival and its end.

    Attributes:
        look_up: Of all leading blocks that somebody owns; None where nothing is asked.
        num_kept: How many leading blocks need not be kept any more.
        ceiling: From this block on nothing is loaded; lowered when a load fails.
        is_unchanged: Whether the adapter's files still are what they were; None without doubt.
        num_local: How many leading blocks the engine had itself when it last looked.
        loaded_tokens: Computed tokens once the planned load has come; 0 without one.
    """

    request: Any
    admission: Admission
    look_up: LookUp | None = None
    num_kept: int = 0
    ceiling: int
    is_unchanged: Callable[[], bool] | None = None
    num_local: int = 0
    loaded_tokens: int = 0


class SchedulerSide:
    """Names, looks up and plans for one scheduler; used by its thread only.

    Args:
        manifest_digest: Gives that of the model with an adapter.
        adapters: Knows adapters by content.
        look_ups: None where there is no store.
        events: Takes "vllm.hit-offered", "vllm.load-planned".
    """

    def __init__(
        self,
        admissions: Admissions,
        *,
        manifest_digest: Callable[[AdapterIdentity | None], bytes],
        adapters: AdapterFiles,
        look_ups: LookUps | None,
        block_tokens: int,
        events: EventSink,
    ) -> None:
        self._admissions = admissions
        self._manifest_digest = manifest_digest
        self._adapters = adapters
        self._look_ups = look_ups
        self._block_tokens = block_tokens
        self._events = events
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[LoadJob] = []

    @property
    def num_tracked(self) -> int:
        """Return how many requests are known."""
        return len(self._tracked)

    def arrive(self, request: Any) -> None:
        """Give a request's blocks our names, in place of the engine's."""
        digest, is_unchanged = self._identify(request)
        token_ids = list(request.all_token_ids)
        params = request.kv_transfer_params
        admission = self._admissions.admit(
            Arrival(
                cache_salt=request.cache_salt,
                transfer_params=params if isinstance(params, Mapping) else {},
                token_ids=token_ids,
                inputs=_inputs(request),
                manifest_digest=digest,
                has_embeddings=request.prompt_embeds is not None
                or request.prompt_is_token_ids is not None,
                goes_on_arriving=bool(request.resumable),
            )
        )
        names = admission.names
        request._block_hasher = _hasher(names)  # noqa: SLF001 - vLLM has no other way
        request.block_hashes = names.extend(token_ids, from_block=0)
        tracked = _Tracked(
            request=request,
            admission=admission,
            ceiling=_last_loadable(request.num_tokens, self._block_tokens),
            is_unchanged=is_unchanged,
        )
        self._tracked[request.request_id] = tracked
        if request.skip_reading_prefix_cache:
            # It finds nothing, and vLLM does not let it wait: it must make nothing wide at once.
            tracked.ceiling = 0
            self._step_out_of(tracked, beyond=0)
        self._ask(tracked)

    def match(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return how many tokens beyond the engine's own can be loaded, and whether meanwhile.

        (None, False) asks the scheduler to come back: the store has not answered yet, or the
        names have changed and what the engine holds has to be looked up again.
        """
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return 0, False
        local = num_computed_tokens // self._block_tokens
        found = self._answer(tracked)
        if found is None:
            return None, False
        end = local
        while end < tracked.ceiling and end < len(found) and found[end]:
            end += 1
        if self._step_out_of(tracked, beyond=end):
            return None, False
        tracked.num_local = local
        if end == local:
            tracked.num_kept = max(tracked.num_kept, local)
            return 0, False
        self._events.emit("vllm.hit-offered")
        return (end - local) * self._block_tokens, True

    def allocate(self, request: Any, block_ids: Sequence[int], num_external_tokens: int) -> None:
        """Plan to load what was offered, now that there is room for it."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or not num_external_tokens:
            return
        first = tracked.num_local
        end = first + num_external_tokens // self._block_tokens
        names = tracked.admission.names
        blocks = []
        for number in range(first, end):
            owner = names.scope_of(number).owner
            if owner is None:
                raise AssertionError("Only blocks that somebody owns are offered.")
            blocks.append(_place(names, number, owner, block_ids))
        tracked.num_kept = max(tracked.num_kept, end)
        tracked.loaded_tokens = end * self._block_tokens
        self._loads.append(LoadJob(request_id=request.request_id, blocks=tuple(blocks)))
        self._events.emit("vllm.load-planned")

    def plan(self, output: Any) -> StepPlan:
        """Return the transfers of a step."""
        loads, self._loads = self._loads, []
        plan = StepPlan(loads=loads, is_idle=output.total_num_scheduled_tokens == 0)
        resolve = output.kv_connector_block_state.resolve_block_ids
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                plan.saves += self._saves(tracked, num_tokens, resolve)
        return plan

    def loaded(self, request_id: str) -> None:
        """Take note that a load has ended, well or not."""
        tracked = self._tracked.get(request_id)
        if tracked is None or tracked.request.num_computed_tokens >= tracked.loaded_tokens:
            return
        # What did not open will not open the next time: nothing more is loaded for this request.
        tracked.ceiling = 0
        valid = tracked.request.num_computed_tokens // self._block_tokens
        tracked.num_kept = min(tracked.num_kept, valid)
        self._step_out_of(tracked, beyond=valid)
        self._events.emit("vllm.load-failed")

    def finish(self, request: Any) -> None:
        """Forget a request."""
        self._tracked.pop(request.request_id, None)

    def _identify(self, request: Any) -> tuple[bytes | None, Callable[[], bool] | None]:
        lora = request.lora_request
        if lora is None:
            return self._manifest_digest(None), None
        asked = AdapterRequest(
            number=lora.lora_int_id,
            folder=Path(lora.lora_path),
            is_reloaded=bool(lora.load_inplace),
        )
        identity = self._adapters.identify(asked)
        if identity is None:
            return None, None
        return self._manifest_digest(identity), self._adapters.still(asked, identity)

    def _ask(self, tracked: _Tracked) -> None:
        if self._look_ups is None:
            return
        names = tracked.admission.names
        questions: list[tuple[ScopeOwner, list[bytes]]] = []
        for number in range(min(names.num_blocks, tracked.ceiling)):
            owner = names.scope_of(number).owner
            if owner is None:
                break
            if not questions or questions[-1][0] != owner:
                questions.append((owner, []))
            questions[-1][1].append(names.chain_hash(number))
        if questions:
            tracked.look_up = self._look_ups.ask(questions, tenant_id=tracked.admission.tenant_id)

    def _answer(self, tracked: _Tracked) -> list[bool] | None:
        if tracked.look_up is None or self._look_ups is None:
            return []
        return self._look_ups.answer(tracked.look_up)

    def _step_out_of(self, tracked: _Tracked, *, beyond: int) -> bool:
        """Keep a request from making blocks of scopes that it may only read.

        Returns:
            Whether names changed.
        """
        names = tracked.admission.names
        changed = False
        for scope in tracked.admission.reads_only:
            changed |= names.narrow(scope, to_blocks=beyond)
        if changed:
            request = tracked.request
            request.block_hashes[:] = [names.resident_hash(n) for n in range(names.num_blocks)]
            self._events.emit("vllm.public-not-there")
            tracked.look_up = None
            self._ask(tracked)
        return changed

    def _saves(
        self, tracked: _Tracked, num_tokens: int, resolve: Callable[[str], Any]
    ) -> list[PlacedBlock]:
        """Return blocks that are full once this step has run and are not kept yet."""
        request, names = tracked.request, tracked.admission.names
        full = (request.num_computed_tokens + num_tokens) // self._block_tokens
        # A block whose last token is not known yet has no name yet, and waits for a later step.
        full = min(full, names.num_blocks)
        if self._look_ups is None or full <= tracked.num_kept:
            return []
        first, tracked.num_kept = tracked.num_kept, full
        if tracked.is_unchanged is not None and not tracked.is_unchanged():
            self._events.emit("vllm.uncacheable", reason="adapter-changed-meanwhile")
            return []
        (block_ids,) = resolve(request.request_id)
        saves = []
        for number in range(first, full):
            scope = names.scope_of(number)
            if scope.owner is not None and scope.scope not in tracked.admission.reads_only:
                saves.append(_place(names, number, scope.owner, block_ids))
        return saves


def _place(
    names: RequestNames, number: int, owner: ScopeOwner, block_ids: Sequence[int]
) -> PlacedBlock:
    return PlacedBlock(owner=owner, chain_hash=names.chain_hash(number), block_id=block_ids[number])


def _hasher(names: RequestNames) -> Callable[[Any], list[bytes]]:
    """Return what vLLM calls whenever a request has more tokens: names of the blocks it lacks."""

    def name_further_blocks(request: Any) -> list[bytes]:
        return names.extend(request.all_token_ids, from_block=len(request.block_hashes))

    return name_further_blocks


def _inputs(request: Any) -> list[PromptInput]:
    """Return what a prompt holds besides tokens, known by the hash that vLLM computed."""
    return [
        PromptInput(
            kind=str(feature.modality),
            digest=_digest_identifier(feature.identifier),
            first_token=feature.mm_position.offset,
            num_tokens=feature.mm_position.length,
        )
        for feature in request.mm_features
    ]


def _digest_identifier(identifier: str) -> bytes | None:
    """Return the digest of an input that vLLM has hashed in full; None for a name."""
    if not _FULL_HASH.fullmatch(identifier):
        return None
    return hashlib.sha256(b"kvward/vllm-input/v1\0" + identifier.encode()).digest()


def _last_loadable(num_tokens: int, block_tokens: int) -> int:
    """Return how many blocks may be loaded: at least one token is always computed."""
    return max(0, num_tokens - 1) // block_tokens
