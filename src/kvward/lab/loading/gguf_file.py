"""One GGUF file of the Llama architecture, with its tokenizer. Needs the extra `smollm2`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvward.blocks.config import digest_config, digest_template, digest_tokenizer
from kvward.blocks.files import digest_named_files, identify_file
from kvward.errors import ModelLoadError
from kvward.lab.interface import FloatArray, LayerWeights, LlamaConfig, LlamaWeights
from kvward.lab.loading.identity import CheckpointIdentity
from kvward.lab.loading.load import LoadedModel
from kvward.lab.tokenizer import ChatTokenizer

_CONTROL_TOKEN = 3


def load_gguf(path: Path, *, name: str) -> LoadedModel:
    """Load a GGUF file, its weights dequantised to float32."""
    try:
        before = identify_file(path)
        reader = gguf.GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
        tensors = {
            tensor.name: np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
            for tensor in reader.tensors
        }
    except (ValueError, IndexError, KeyError, OSError) as exc:
        raise ModelLoadError(
            f"{path} is not a GGUF file that can be read: {exc}.",
            hint="It may be cut off; fetch it again.",
        ) from exc
    if fields.get("general.architecture") != "llama":
        raise ModelLoadError(
            f"The architecture {fields.get('general.architecture')!r} is not understood.",
            hint="The lab runs the Llama architecture only.",
        )
    try:
        config = _read_config(fields, tensors)
        weights = _arrange(tensors, config)
        tokenizer = _read_tokenizer(fields)
    except KeyError as exc:
        raise ModelLoadError(f"{path} lacks {exc}.") from exc
    identity = _identify(path, fields)
    if identify_file(path) != before:
        raise ModelLoadError(f"{path} changed while it was read.", hint="Load it again.")
    return LoadedModel(
        name=name, config=config, weights=weights, tokenizer=tokenizer, identity=identity
    )


def _identify(path: Path, fields: Mapping[str, Any]) -> CheckpointIdentity:
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").digest()
        num_bytes = file.tell()
    tokenizer = {key: fields[key] for key in fields if key.startswith("tokenizer.ggml.")}
    return CheckpointIdentity(
        # One file has no name within its model; the whole of it is the model.
        weights=digest_named_files([("", num_bytes, content)]),
        tokenizer=digest_tokenizer({"gguf": digest_config(tokenizer)}),
        chat_template=digest_template(fields.get("tokenizer.chat_template")),
        quantisation=f"gguf file type {fields.get('general.file_type')}",
    )


def _read_config(fields: Mapping[str, Any], tensors: Mapping[str, FloatArray]) -> LlamaConfig:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    if "llama.rope.scaling.type" in fields and fields["llama.rope.scaling.type"] != "none":
        raise ModelLoadError("The lab does not understand this model's rotary scaling.")
    end = fields.get("tokenizer.ggml.eos_token_id")
    return LlamaConfig(
        vocab=len(fields["tokenizer.ggml.tokens"]),
        hidden=hidden,
        intermediate=fields["llama.feed_forward_length"],
        num_layers=fields["llama.block_count"],
        num_heads=heads,
        num_kv_heads=fields.get("llama.attention.head_count_kv", heads),
        head_dim=fields.get("llama.attention.key_length", hidden // heads),
        rms_eps=float(fields["llama.attention.layer_norm_rms_epsilon"]),
        rope_theta=float(fields.get("llama.rope.freq_base", 10_000.0)),
        max_context_tokens=fields["llama.context_length"],
        tie_embeddings="output.weight" not in tensors,
        eos_token_ids=() if end is None else (end,),
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
    )


def _arrange(tensors: Mapping[str, FloatArray], config: LlamaConfig) -> LlamaWeights:
    def matrix(key: str) -> FloatArray:
        return np.ascontiguousarray(tensors[key].T)

    def rotary_matrix(key: str, num_heads: int) -> FloatArray:
        # GGUF stores the two members of a rotary pair side by side; we rotate halves.
        paired = tensors[key].reshape(num_heads, config.head_dim // 2, 2, config.hidden)
        halves = paired.swapaxes(1, 2).reshape(num_heads * config.head_dim, config.hidden)
        return np.ascontiguousarray(halves.T)

    def layer(number: int) -> LayerWeights:
        at = f"blk.{number}."
        return LayerWeights(
            attention_norm=tensors[at + "attn_norm.weight"],
            wq=rotary_matrix(at + "attn_q.weight", config.num_heads),
            wk=rotary_matrix(at + "attn_k.weight", config.num_kv_heads),
            wv=matrix(at + "attn_v.weight"),
            wo=matrix(at + "attn_output.weight"),
            mlp_norm=tensors[at + "ffn_norm.weight"],
            w_gate=matrix(at + "ffn_gate.weight"),
            w_up=matrix(at + "ffn_up.weight"),
            w_down=matrix(at + "ffn_down.weight"),
        )

    return LlamaWeights(
        embedding=tensors["token_embd.weight"],
        layers=tuple(layer(number) for number in range(config.num_layers)),
        final_norm=tensors["output_norm.weight"],
        head=matrix("token_embd.weight" if config.tie_embeddings else "output.weight"),
    )


def _read_tokenizer(fields: Mapping[str, Any]) -> ChatTokenizer:
    kind = (fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ModelLoadError(
            f"The lab does not know how the tokenizer {kind} splits text.",
            hint="Of GGUF files it reads those of the SmolLM family; others as a model folder.",
        )
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [t for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])

    def text_of(key: str) -> str | None:
        number = fields.get(key)
        return None if number is None else tokens[number]

    return ChatTokenizer(
        tokenizer,
        chat_template=fields.get("tokenizer.chat_template"),
        bos_token=text_of("tokenizer.ggml.bos_token_id"),
        eos_token=text_of("tokenizer.ggml.eos_token_id"),
    )
