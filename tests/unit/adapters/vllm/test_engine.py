"""What the connector refuses, each by one changed attribute of an engine that it would serve."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Has
from typing import Any

import pytest

from kvward.adapters.vllm.engine import EngineFacts, check_engine, describe_engine, describe_layout
from kvward.blocks.manifest import AdapterIdentity
from kvward.errors import CapabilityError, ConfigError, UsageError


class FullAttentionSpec(Has):
    """Known by its name, as vLLM's."""


def good() -> tuple[Any, Any]:
    """Return what vLLM resolved for an engine that the connector serves."""
    spec = FullAttentionSpec(
        block_size=16, num_kv_heads=2, head_size=64, head_size_v=64, dtype="torch.bfloat16",
        sliding_window=None, attention_chunk_size=None, non_causal=False,
    )  # fmt: skip
    kv_cache = Has(
        kv_cache_groups=[Has(kv_cache_spec=spec, layer_names=["l.0", "l.1"])],
        hash_block_size=16,
        kv_cache_layout="HND",
    )
    config = Has(
        model_config=Has(
            dtype="torch.bfloat16", is_encoder_decoder=False, enable_sleep_mode=False,
            quantization=None, max_model_len=512, revision=None, tokenizer_revision=None,
            tokenizer_mode="auto", model="", tokenizer="",
            hf_config=Has(to_dict=lambda: {"rope_theta": 1e4, "_name_or_path": "x"}),
        ),
        parallel_config=Has(
            tensor_parallel_size=1, pipeline_parallel_size=1, prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
        ),
        cache_config=Has(cache_dtype="auto"),
        kv_transfer_config=Has(kv_load_failure_policy="recompute", kv_role="kv_both"),
        device_config=Has(device_type="cpu"),
        scheduler_config=Has(async_scheduling=False),
        load_config=Has(load_format="auto"),
        attention_config=Has(backend=None),
        speculative_config=None,
        weight_transfer_config=None,
    )  # fmt: skip
    return config, kv_cache


def check(config: Any, kv_cache: Any, *, version: str = "0.32.0", untested: bool = False) -> None:
    check_engine(config, kv_cache, version=version, untested_platform=untested)


def put(path: str, value: object) -> Callable[[Any, Any], None]:
    def change(config: Any, kv_cache: Any) -> None:
        *way, last = path.split(".")
        place = kv_cache if way[:1] == ["kv_cache"] else config
        if way[:1] == ["spec"]:
            place = kv_cache.kv_cache_groups[0].kv_cache_spec
        for name in way if place is config else ():
            place = getattr(place, name)
        setattr(place, last, value)

    return change


def another_kind(config: Any, kv_cache: Any) -> None:
    kv_cache.kv_cache_groups[0].kv_cache_spec = Has(
        **vars(kv_cache.kv_cache_groups[0].kv_cache_spec)
    )


def test_good_engine_is_served() -> None:
    for version in ("0.32.0", "0.32.1+cpu"):
        check(*good(), version=version)
    config, kv_cache = good()
    config.cache_config.cache_dtype = "bfloat16"  # said outright, and the same
    check(config, kv_cache)


@pytest.mark.parametrize(
    "version", ["0.31.0", "0.33.0", "0.32.0rc1", "0.32.0+cu129", "", "10.32.0"]
)
def test_other_version_is_refused(version: str) -> None:
    with pytest.raises(CapabilityError, match="not tested"):
        check(*good(), version=version)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            put("kv_transfer_config.kv_load_failure_policy", "fail"),
            "failure_policy is fail",
        ),
        (put("kv_transfer_config.kv_role", "kv_producer"), "kv_role"),
        (another_kind, "of the kind"),
        (put("spec.sliding_window", 128), "window"),
        (put("spec.attention_chunk_size", 128), "window"),
        (put("spec.non_causal", True), "window"),
        (put("spec.head_size_v", 32), "different sizes"),
        (put("speculative_config", Has()), "speculative"),
        (put("cache_config.cache_dtype", "fp8"), "quantised"),
        (put("cache_config.cache_dtype", "float16"), "quantised"),
        (put("parallel_config.tensor_parallel_size", 2), "ranks"),
        (put("parallel_config.pipeline_parallel_size", 2), "ranks"),
        (put("parallel_config.prefill_context_parallel_size", 2), "ranks"),
        (put("parallel_config.decode_context_parallel_size", 2), "ranks"),
        (put("model_config.is_encoder_decoder", True), "encoder"),
        (put("kv_cache.hash_block_size", 8), "other units"),
        (put("load_config.load_format", "dummy"), "random"),
        (put("model_config.enable_sleep_mode", True), "replaced"),
        (put("weight_transfer_config", Has()), "replaced"),
        (put("device_config.device_type", "cuda"), "CPU only"),
        (put("scheduler_config.async_scheduling", True), "asynchronous"),
        (put("scheduler_config.async_scheduling", None), None),
        (lambda config, kv_cache: kv_cache.kv_cache_groups.append(1), "2 groups"),
        (lambda config, kv_cache: kv_cache.kv_cache_groups.clear(), "0 groups"),
    ],
)
def test_engine_with_one_thing_changed_is_refused_with_a_mend(
    change: Callable[[Any, Any], None], words: str | None
) -> None:
    config, kv_cache = good()
    change(config, kv_cache)
    if words is None:
        check(config, kv_cache)
        return
    with pytest.raises(CapabilityError, match=words) as caught:
        check(config, kv_cache)
    assert caught.value.hint


def test_operators_word_opens_untested_platforms_and_nothing_else() -> None:
    config, kv_cache = good()
    config.device_config.device_type = "cuda"
    config.scheduler_config.async_scheduling = True
    check(config, kv_cache, untested=True)
    config.cache_config.cache_dtype = "fp8"
    with pytest.raises(CapabilityError):
        check(config, kv_cache, untested=True)


# What it is.


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def describe(
    folder: Path, change: Callable[[Any, Any], None] | None = None, *, started: float = 2.0**33
) -> EngineFacts:
    config, kv_cache = good()
    config.model_config.model = config.model_config.tokenizer = str(folder)
    if change is not None:
        change(config, kv_cache)
    return describe_engine(config, kv_cache, version="0.32.0", started_unix_s=started)


def test_layout_is_that_of_the_engines_pages() -> None:
    layout = describe_layout(good()[1])
    assert (layout.block_tokens, layout.num_kv_heads, layout.head_dim) == (16, 2, 64)
    assert layout.layers_of_stage == (2,)
    assert layout.block_bytes == 2 * 2 * 2 * 64 * 16 * 2


def test_same_engine_is_the_same_and_each_change_is_another(model: Path) -> None:
    digest = describe(model).manifest_digest(None)
    assert digest == describe(model).manifest_digest(None)
    assert digest == describe(
        model, lambda c, k: setattr(c.model_config, "hf_config", Has(to_dict=lambda: {
            "rope_theta": 1e4, "_name_or_path": "elsewhere"}))
    ).manifest_digest(None)  # fmt: skip
    changes: list[Callable[[Any, Any], None]] = [
        put("model_config.max_model_len", 1024),
        put("model_config.quantization", "awq"),
        put("model_config.dtype", "torch.float32"),
        put("attention_config.backend", "OTHER"),
        put("spec.block_size", 32),
        put("load_config.load_format", "gguf"),
        lambda c, k: setattr(c.model_config, "hf_config", Has(to_dict=lambda: {"rope_theta": 1e5})),
        lambda c, k: setattr(k, "kv_cache_layout", "NHD"),
    ]
    digests = {describe(model, change).manifest_digest(None) for change in changes}
    adapter = AdapterIdentity(digest=b"a" * 32, scaling="from-files")
    digests |= {digest, describe(model).manifest_digest(adapter)}
    assert len(digests) == len(changes) + 2


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_other_files_are_another_model(model: Path, name: str) -> None:
    before = describe(model).manifest_digest(None)
    (model / name).write_text(json.dumps({"other": 1}))
    assert describe(model).manifest_digest(None) != before


def test_weights_newer_than_the_engine_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="after the engine started"):
        describe(model, started=0)


def test_model_by_name_needs_a_full_revision(model: Path) -> None:
    def named(revision: str | None) -> Callable[[Any, Any], None]:
        def change(config: Any, kv_cache: Any) -> None:
            config.model_config.model = "owner/name"
            config.model_config.revision = revision

        return change

    with pytest.raises(ConfigError, match="no revision"):
        describe(model, named(None))
    with pytest.raises(UsageError):
        describe(model, named("main"))
    assert describe(model, named("a" * 40)).manifest_digest(None)


def streamed(config: Any, kv_cache: Any) -> None:
    """As vLLM leaves it when weights are streamed: `model` is a folder with everything else."""
    config.load_config.load_format = "runai_streamer"
    config.model_config.model_weights = "s3://bucket/model"


def test_model_whose_weights_lie_elsewhere_has_no_identity(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigError):
        describe(model, streamed)


def test_index_of_weights_that_lie_elsewhere_is_no_identity(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError):
        describe(model, streamed)
