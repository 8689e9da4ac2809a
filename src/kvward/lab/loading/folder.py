"""A folder in the layout of transformers: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors

from kvward.blocks.config import digest_template, digest_tokenizer
from kvward.blocks.files import digest_named_files
from kvward.errors import ModelLoadError
from kvward.lab.interface import FloatArray, LayerWeights, LlamaConfig, LlamaWeights
from kvward.lab.loading.identity import CheckpointIdentity
from kvward.lab.loading.load import LoadedModel
from kvward.lab.tokenizer import ChatTokenizer

_FLOATS = frozenset({"float16", "float32", "bfloat16"})


def load_folder(folder: Path, *, name: str) -> LoadedModel:
    """Load a checkpoint folder."""
    config_path = folder / "config.json"
    config = _parse_config(_parse_json(_read(config_path), config_path))
    weight_files = _weight_files(folder)
    tensors: dict[str, FloatArray] = {}
    files: list[tuple[str, int, bytes]] = []
    for path in weight_files:
        content = _read(path)
        files.append((path.name, len(content), hashlib.sha256(content).digest()))
        tensors |= _parse_tensors(content, path)
    tokenizer_bytes = _read(folder / "tokenizer.json")
    settings_path = folder / "tokenizer_config.json"
    settings_bytes = _read(settings_path) if settings_path.exists() else b"{}"
    settings = _parse_json(settings_bytes, settings_path)
    template = settings.get("chat_template")
    template = template if isinstance(template, str) else None
    special = {key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token")}
    return LoadedModel(
        name=name,
        config=config,
        weights=_arrange(tensors, config, folder),
        tokenizer=ChatTokenizer.from_json(
            tokenizer_bytes.decode("utf-8", errors="replace"),
            chat_template=template,
            **special,
        ),
        identity=CheckpointIdentity(
            weights=digest_named_files(files),
            tokenizer=digest_tokenizer(
                {"tokenizer.json": tokenizer_bytes}
                | {key: text.encode() for key, text in special.items() if text is not None}
            ),
            chat_template=digest_template(template),
            quantisation=None,
        ),
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ModelLoadError(
            f"{path} cannot be read: {exc.strerror}.",
            hint="A model folder holds config.json, tokenizer.json and *.safetensors. "
            "`kvward canary-model DIR` writes one.",
        ) from exc


def _parse_json(content: bytes, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as exc:
        raise ModelLoadError(f"{path} is not JSON: {exc}.") from exc
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object.")
    return value


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.exists():
        named = set(_parse_json(_read(index), index).get("weight_map", {}).values())
        missing = named - {path.name for path in files}
        if missing:
            raise ModelLoadError(f"{folder} lacks {min(missing)}, which its index names.")
        files = [path for path in files if path.name in named]
    if not files:
        raise ModelLoadError(
            f"{folder} holds no weights (*.safetensors).",
            hint="Copy the weights there; `kvward canary-model DIR` writes a small checkpoint.",
        )
    return files


def _parse_tensors(content: bytes, path: Path) -> dict[str, FloatArray]:
    try:
        tensors = load_safetensors(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as exc:
        raise ModelLoadError(
            f"{path} is not a safetensors file that can be read: {exc}.",
            hint="It may be cut off; copy it again.",
        ) from exc
    for key, tensor in tensors.items():
        if tensor.dtype.name not in _FLOATS:
            raise ModelLoadError(
                f"{path}: tensor {key} has type {tensor.dtype.name}, which the lab does not read.",
                hint="Use weights in float32, float16 or bfloat16, without quantisation.",
            )
    return {key: tensor.astype(np.float32) for key, tensor in tensors.items()}


def _parse_config(values: Mapping[str, Any]) -> LlamaConfig:
    if values.get("model_type") != "llama":
        raise ModelLoadError(
            f"The model type {values.get('model_type')!r} is not understood.",
            hint="The lab runs the Llama architecture only.",
        )
    rope = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", "default")
    for wrong, what in [
        (scaling.get("rope_type", scaling.get("type", "default")) != "default", "rotary scaling"),
        (rope_type != "default", "rotary scaling"),
        (values.get("attention_bias", False), "attention bias"),
        (values.get("mlp_bias", False), "MLP bias"),
        (values.get("quantization_config") is not None, "quantisation"),
        (values.get("hidden_act", "silu") != "silu", "activation other than SiLU"),
    ]:
        if wrong:
            raise ModelLoadError(f"The lab does not understand this model's {what}.")
    try:
        heads = int(values["num_attention_heads"])
        hidden = int(values["hidden_size"])
        eos = values.get("eos_token_id")
        return LlamaConfig(
            vocab=int(values["vocab_size"]),
            hidden=hidden,
            intermediate=int(values["intermediate_size"]),
            num_layers=int(values["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or hidden // heads),
            rms_eps=float(values["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta", values.get("rope_theta", 10_000.0))),
            max_context_tokens=int(values["max_position_embeddings"]),
            tie_embeddings=bool(values.get("tie_word_embeddings", False)),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
            bos_token_id=values.get("bos_token_id"),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise ModelLoadError(f"config.json lacks or misstates {exc}.") from exc


def _arrange(tensors: Mapping[str, FloatArray], config: LlamaConfig, folder: Path) -> LlamaWeights:
    kv, q = config.num_kv_heads * config.head_dim, config.num_heads * config.head_dim
    hidden, wide = config.hidden, config.intermediate

    def take(key: str, *shape: int) -> FloatArray:
        tensor = tensors.get(key)
        if tensor is None or tensor.shape != shape:
            found = "no such tensor" if tensor is None else f"shape {tensor.shape}"
            raise ModelLoadError(
                f"{folder}: {key} should have shape {shape}, but there is {found}.",
                hint="config.json and weights do not belong together.",
            )
        return tensor

    def matrix(key: str, num_out: int, num_in: int) -> FloatArray:
        return np.ascontiguousarray(take(key, num_out, num_in).T)

    def layer(number: int) -> LayerWeights:
        at = f"model.layers.{number}."
        return LayerWeights(
            attention_norm=take(at + "input_layernorm.weight", hidden),
            wq=matrix(at + "self_attn.q_proj.weight", q, hidden),
            wk=matrix(at + "self_attn.k_proj.weight", kv, hidden),
            wv=matrix(at + "self_attn.v_proj.weight", kv, hidden),
            wo=matrix(at + "self_attn.o_proj.weight", hidden, q),
            mlp_norm=take(at + "post_attention_layernorm.weight", hidden),
            w_gate=matrix(at + "mlp.gate_proj.weight", wide, hidden),
            w_up=matrix(at + "mlp.up_proj.weight", wide, hidden),
            w_down=matrix(at + "mlp.down_proj.weight", hidden, wide),
        )

    embedding = take("model.embed_tokens.weight", config.vocab, hidden)
    tied = config.tie_embeddings and "lm_head.weight" not in tensors
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(layer(number) for number in range(config.num_layers)),
        final_norm=take("model.norm.weight", hidden),
        head=np.ascontiguousarray(embedding.T)
        if tied
        else matrix("lm_head.weight", config.vocab, hidden),
    )


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
