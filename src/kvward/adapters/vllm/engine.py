"""What the running engine is: its manifest and block layout, or a refusal.

Nothing here imports vLLM: its configuration objects are read by attribute. What is read is what
vLLM resolved, after its own defaults and every override.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvward.blocks.config import digest_config, digest_tokenizer
from kvward.blocks.files import FileDigests, newest_change_ns
from kvward.blocks.layout import BlockLayout
from kvward.blocks.manifest import (
    AdapterIdentity,
    ModelManifest,
    ParallelShape,
    WeightsIdentity,
    WeightsKind,
)
from kvward.errors import CapabilityError, ConfigError

TESTED_VERSIONS = re.compile(r"0\.32\.\d+(\+cpu)?")
TESTED_DEVICE = "cpu"
_INDEX = ".index.json"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json")
_TOKENIZER = ("token*", "*.model", "vocab*", "merges*", "special_tokens_map.json", "added_tokens*",
              "chat_template*")  # fmt: skip
_NOT_CONTENT = frozenset({"_name_or_path", "transformers_version"})
_PREFIX = "torch."
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The parts of a manifest that do not change while an engine runs."""

    base: ModelManifest
    layout: BlockLayout

    def manifest_digest(self, adapter: AdapterIdentity | None) -> bytes:
        """Return the digest of the model with an adapter, 32 bytes."""
        return replace(self.base, adapter=adapter).digest()


def check_engine(config: Any, kv_cache: Any, *, version: str, untested_platform: bool) -> None:
    """Refuse an engine whose blocks the connector would name or move wrongly.

    Args:
        config: vLLM's `VllmConfig`.
        kv_cache: vLLM's `KVCacheConfig`.
        version: Of vLLM.
        untested_platform: The operator's word that an untested device may run.
    Raises:
        CapabilityError: With what is in the way, and the mend.
    """
    if not TESTED_VERSIONS.fullmatch(version):
        raise CapabilityError(
            f"The connector was not tested with vLLM {version}.",
            hint="Use vLLM 0.32, or a kvward that knows this version.",
        )
    if len(kv_cache.kv_cache_groups) != 1:
        raise CapabilityError(
            f"The model keeps {len(kv_cache.kv_cache_groups)} groups of KV layers.",
            hint="Only models with one group are understood. Run this one without the connector, "
            "behind the gateway: its salt isolates vLLM's own prefix cache.",
        )
    spec = kv_cache.kv_cache_groups[0].kv_cache_spec
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    transfer = config.kv_transfer_config
    device = str(config.device_config.device_type)
    for wrong, what, mend in [
        (transfer.kv_load_failure_policy != "recompute",
         f"kv_load_failure_policy is {transfer.kv_load_failure_policy}: lost blocks fail requests",
         'Set "kv_load_failure_policy": "recompute".'),
        (transfer.kv_role != "kv_both",
         f"kv_role is {transfer.kv_role!r}", 'Set "kv_role": "kv_both".'),
        (type(spec).__name__ != "FullAttentionSpec",
         f"its KV layers are of the kind {type(spec).__name__}",
         "Run this model without the connector, behind the gateway."),
        (_any(spec, "sliding_window", "attention_chunk_size", "non_causal"),
         "some layers attend to a window, to chunks, or to what follows",
         "Run this model without the connector, behind the gateway."),
        (getattr(spec, "head_size_v", spec.head_size) != spec.head_size,
         "keys and values have different sizes", "Run this model without the connector."),
        (config.speculative_config is not None, "speculative decoding is on",
         "Take out --speculative-config: what a draft model caches is not covered."),
        (cache.cache_dtype not in {"auto", _type_name(model.dtype)},
         f"the KV cache is quantised ({cache.cache_dtype})",
         "Take out --kv-cache-dtype: the scales of a quantised cache are not known to us."),
        (max(parallel.tensor_parallel_size, parallel.pipeline_parallel_size,
             parallel.prefill_context_parallel_size, parallel.decode_context_parallel_size) > 1,
         "the model is cut over several ranks", "Use one rank for each engine."),
        (bool(model.is_encoder_decoder), "the model has an encoder of its own",
         "Run this model without the connector."),
        (kv_cache.hash_block_size != spec.block_size,
         "prefixes are matched in other units than blocks",
         "Take out the option that sets the prefix match unit."),
        (config.load_config.load_format == "dummy", "the weights are random",
         "Load real weights: random ones have no identity."),
        (bool(model.enable_sleep_mode) or config.weight_transfer_config is not None,
         "weights may be replaced while the engine runs",
         "Take out --enable-sleep-mode and weight transfer."),
        (device != TESTED_DEVICE and not untested_platform,
         f"the connector was tested on CPU only, and this engine runs on {device}",
         'Set "untested_platform": true once you have audited it on your own machine.'),
        (bool(config.scheduler_config.async_scheduling) and not untested_platform,
         "the connector was not tested with asynchronous scheduling",
         "Give --no-async-scheduling."),
    ]:  # fmt: skip
        if wrong:
            raise CapabilityError(f"The connector cannot serve this engine: {what}.", hint=mend)


def describe_layout(kv_cache: Any) -> BlockLayout:
    """Return how a block lies in the engine's memory."""
    group = kv_cache.kv_cache_groups[0]
    spec = group.kv_cache_spec
    return BlockLayout(
        order=f"layer,head,token,plane,channel (vLLM {kv_cache.kv_cache_layout})",
        dtype=_type_name(spec.dtype),
        block_tokens=spec.block_size,
        num_planes=2,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_size,
        tensor_ranks=1,
        layers_of_stage=(len(group.layer_names),),
        num_kv_groups=1,
    )


def describe_engine(
    config: Any, kv_cache: Any, *, version: str, started_unix_s: float
) -> EngineFacts:
    """Return the manifest of a running engine.

    Args:
        started_unix_s: When the engine's process began, before it read any weights.
    Raises:
        ConfigError: The files cannot be read, or may not be those that were loaded.
    """
    model, parallel = config.model_config, config.parallel_config
    layout = describe_layout(kv_cache)
    dtype = _type_name(model.dtype)
    base = ModelManifest(
        weights=_weights(model, started_unix_s),
        configuration=digest_config(
            {
                "model": _plain(model.hf_config.to_dict()),
                "max_model_len": model.max_model_len,
                "load_format": str(config.load_config.load_format),
            }
        ),
        tokenizer=_tokenizer(model),
        # Templates act before the engine sees a prompt; its token ids are what is named.
        chat_template=None,
        dtype=dtype,
        kv_dtype=layout.dtype,
        kv_scales=None,
        quantisation=None if model.quantization is None else str(model.quantization),
        attention=f"vLLM on {config.device_config.device_type}, "
        f"{config.attention_config.backend or 'its choice'}, {kv_cache.kv_cache_layout}",
        block_tokens=layout.block_tokens,
        parallel=ParallelShape(
            tensor=parallel.tensor_parallel_size,
            pipeline=parallel.pipeline_parallel_size,
            context=parallel.decode_context_parallel_size,
            expert=1,
        ),
        engine="vllm",
        engine_version=version,
        adapter=None,
    )
    return EngineFacts(base=base, layout=layout)


def _weights(model: Any, started_unix_s: float) -> WeightsIdentity:
    folder = Path(model.model)
    if not folder.is_dir():
        if model.revision is None:
            raise ConfigError(
                f"The model {model.model!r} is not a folder, and no revision is named.",
                hint="Give a folder, or --revision with the commit in full.",
            )
        return WeightsIdentity.from_revision(str(model.revision))
    names = _names(folder, _WEIGHTS)
    if all(name.endswith(_INDEX) for name in names):
        raise ConfigError(
            f"There are no weights in {folder}.",
            hint="An index of shards says nothing about what is in them: give a folder that holds "
            "them.",
        )
    if newest_change_ns(folder, names) >= started_unix_s * _NANOSECONDS:
        raise ConfigError(
            f"Weights in {folder} changed after the engine started.",
            hint="Nobody can tell which of them it has loaded: start it again.",
        )
    return WeightsIdentity(kind=WeightsKind.FULL_HASH, digest=FileDigests().digest(folder, names))


def _tokenizer(model: Any) -> bytes:
    folder = Path(model.tokenizer)
    parts = {"mode": str(model.tokenizer_mode).encode()}
    if folder.is_dir():
        parts |= {name: (folder / name).read_bytes() for name in _names(folder, _TOKENIZER)}
    else:
        parts["name"] = f"{model.tokenizer}@{model.tokenizer_revision}".encode()
    return digest_tokenizer(parts)


def _names(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.name for path in files)


def _plain(value: object) -> Any:
    """Return a configuration as JSON has it; what has no place there becomes text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if str(k) not in _NOT_CONTENT}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(str(item) for item in value)
    return str(value)


def _any(spec: Any, *names: str) -> bool:
    return any(getattr(spec, name, None) not in {None, False} for name in names)


def _type_name(dtype: object) -> str:
    return str(dtype).removeprefix(_PREFIX)
