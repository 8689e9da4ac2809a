"""vLLM's own class for connectors: protocol glue, no decisions.

`--kv-transfer-config '{"kv_connector": "KvwardConnector", "kv_connector_module_path":
"kvward.adapters.vllm", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'`
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psutil
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from kvward.adapters.vllm.adapter_files import AdapterFiles
from kvward.adapters.vllm.admission import Admissions
from kvward.adapters.vllm.engine import check_engine, describe_engine, describe_layout
from kvward.adapters.vllm.lookups import LookUps
from kvward.adapters.vllm.runtime import Runtime
from kvward.adapters.vllm.scheduler_side import SchedulerSide
from kvward.adapters.vllm.selftest import check_local_cache
from kvward.adapters.vllm.settings import make_settings
from kvward.adapters.vllm.transfers import StepPlan
from kvward.adapters.vllm.worker_side import LoadResults, WorkerSide
from kvward.events import EventCounter, EventSink

if TYPE_CHECKING:
    import torch

_MILLISECOND_S = 0.001
_LOG = init_logger("vllm.kvward")  # under vLLM's name, or its handlers do not see it


class StepMetadata(KVConnectorMetadata):
    """A step's plan on its way from scheduler to worker."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan


class KvwardConnector(KVConnectorBase_V1):
    """Scopes vLLM's own prefix cache, and keeps sealed blocks outside it."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._settings = make_settings(
            vllm_config.kv_transfer_config.kv_connector_extra_config or {}
        )
        check_engine(
            vllm_config,
            kv_cache_config,
            version=vllm.__version__,
            untested_platform=self._settings.untested_platform,
        )
        self._layout = describe_layout(kv_cache_config)
        name = "scheduler" if role == KVConnectorRole.SCHEDULER else "worker"
        self._runtime = Runtime(self._settings, self._layout, role=name)
        self._scheduler: SchedulerSide | None = None
        self._look_ups: LookUps | None = None
        self._worker: WorkerSide | None = None
        self._results = LoadResults(request_ids=set(), failed_block_ids=set())
        if role == KVConnectorRole.SCHEDULER:
            self._started_unix_s = psutil.Process().create_time()
            self._facts = describe_engine(
                vllm_config,
                kv_cache_config,
                version=vllm.__version__,
                started_unix_s=self._started_unix_s,
            )
            _LOG.info(
                "KvwardConnector is in force: the engine's own blocks are named by scope, %s. "
                "Policy %s, public prefixes: %d. This engine's manifest is %s",
                "and nothing is kept outside it" if self._runtime.store is None
                else "and sealed ones are kept outside it",
                self._settings.policy,
                self._runtime.public.num_registered,
                self._facts.manifest_digest(None).hex(),
            )  # fmt: skip
            for note in self._runtime.notes:
                _LOG.warning(note)
            if self._runtime.store is not None:
                self._look_ups = LookUps(
                    self._runtime.store,
                    events=self._runtime.events,
                    num_threads=self._settings.lookup_threads,
                    wait_s=self._settings.lookup_ms * _MILLISECOND_S,
                )
            self._scheduler = self._make_side(self._runtime.events, self._look_ups)

    @property
    def requires_kv_delivery(self) -> bool:
        """Return False: what is not kept is computed again."""
        return False

    # Beside the scheduler.

    def _make_side(self, events: EventSink, look_ups: LookUps | None) -> SchedulerSide:
        admissions = Admissions(
            self._runtime.issuer.token_key,
            block_tokens=self._layout.block_tokens,
            public=self._runtime.public.current,
            events=events,
            now_unix_s=time.time,
        )
        return SchedulerSide(
            admissions,
            manifest_digest=lambda adapter: self._runtime.equal.resolve(
                self._facts.manifest_digest(adapter)
            ),
            adapters=AdapterFiles(
                started_unix_s=self._started_unix_s,
                are_immutable=self._settings.adapters_immutable,
                events=events,
            ),
            look_ups=look_ups,
            block_tokens=self._layout.block_tokens,
            events=events,
        )

    @property
    def _side(self) -> SchedulerSide:
        if self._scheduler is None:
            raise RuntimeError("This is the worker's half of the connector.")
        return self._scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Prove that the engine's own cache follows our names."""
        super().bind_kv_cache_manager(kv_cache_manager)
        side = self._make_side(EventCounter(), None)
        check_local_cache(
            kv_cache_manager,
            token_key=self._runtime.issuer.token_key,
            block_tokens=self._layout.block_tokens,
            make_request=self._make_request,
            arrive=side.arrive,
            leave=side.finish,
        )

    def on_new_request(self, request: Any) -> None:
        """Name the blocks of a request before anything is looked up."""
        self._side.arrive(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tell how much the store seems to have beyond what the engine has itself."""
        return self._side.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan a load into the blocks that were set aside for it."""
        (block_ids,) = blocks.get_block_ids()
        self._side.allocate(request, block_ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """Return the transfers of this step."""
        return StepMetadata(self._side.plan(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """Take note of loads that have ended."""
        for request_id in connector_output.finished_recving or ():
            self._side.loaded(request_id)

    def request_finished(
        self,
        request: Any,
        block_ids: list[int],  # noqa: ARG002 - vLLM's
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forget a request. Its blocks are free at once: what is kept was copied already."""
        self._side.finish(request)
        return False, None

    # Beside the worker's pages.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take hold of the engine's pages."""
        from kvward.adapters.vllm.pages import Pages, order_layers

        if self._runtime.store is None:
            return
        (group,) = self._kv_cache_config.kv_cache_groups
        pages = Pages(order_layers(kv_caches, group.layer_names), self._layout)
        self._worker = WorkerSide(
            self._runtime.store,
            self._layout,
            pages,
            events=self._runtime.events,
            num_threads=self._settings.transfer_threads,
            load_s=self._settings.load_s,
            pending_bytes=self._settings.pending_bytes,
        )

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002 - vLLM's
        """Begin this step's loads, in threads."""
        if self._worker is not None:
            self._worker.start_loads(self._plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Return at once: a request that waits for a load is in no forward pass."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Return at once: whole blocks are copied when all layers have run."""

    def wait_for_save(self) -> None:
        """Copy the blocks that this step has filled."""
        if self._worker is not None:
            self._worker.save(self._plan)

    def get_finished(
        self,
        finished_req_ids: set[str],  # noqa: ARG002 - vLLM's
    ) -> tuple[set[str] | None, set[str] | None]:
        """Write what has been opened into its pages, and tell whose loads have ended."""
        if self._worker is None:
            return None, None
        self._results = self._worker.collect(self._plan)
        return None, self._results.request_ids or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks whose load failed."""
        return self._results.failed_block_ids

    def shutdown(self) -> None:
        """Keep what waits to be kept, and close everything."""
        if self._look_ups is not None:
            self._look_ups.close()
        if self._worker is not None:
            self._worker.close()
        self._runtime.close()

    @property
    def _plan(self) -> StepPlan:
        metadata = self._get_connector_metadata()
        if not isinstance(metadata, StepMetadata):
            raise TypeError("The step's metadata is not ours.")
        return metadata.plan

    @staticmethod
    def _make_request(request_id: str, token_ids: list[int], salt: str | None) -> Request:
        return Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            cache_salt=salt,
            block_hasher=lambda request: [bytes(32)] * (1 - len(request.block_hashes)),
        )
