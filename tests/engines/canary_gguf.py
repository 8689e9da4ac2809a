"""The canary model as llama.cpp reads it: the same numbers and words in one GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from kvward.audit.canary.checkpoint import (
    CHAT_TEMPLATE,
    DEFAULT_GAIN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    MAX_CONTEXT_TOKENS,
    RMS_EPS,
    ROPE_THETA,
    SPECIAL_TOKENS,
    VOCABULARY,
    FloatArray,
    canary_tensors,
)
from kvward.audit.canary.words import WORDS

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.0.input_layernorm": "blk.0.attn_norm",
    "model.layers.0.self_attn.q_proj": "blk.0.attn_q",
    "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
    "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
    "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
    "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate",
    "model.layers.0.mlp.up_proj": "blk.0.ffn_up",
    "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
}
_ROTATED = {"blk.0.attn_q": HEADS, "blk.0.attn_k": KV_HEADS}
_SPACE = "\u2581"


def write_canary_gguf(path: Path) -> None:
    """Write the canary model in float32."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(MAX_CONTEXT_TOKENS)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(RMS_EPS)
    writer.add_vocab_size(VOCABULARY)
    _add_tokenizer(writer)
    for name, tensor in canary_tensors(gain=DEFAULT_GAIN).items():
        stem, _, kind = name.rpartition(".")
        renamed = _NAMES[stem]
        heads = _ROTATED.get(renamed)
        writer.add_tensor(f"{renamed}.{kind}", tensor if heads is None else _paired(tensor, heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _paired(tensor: FloatArray, heads: int) -> FloatArray:
    """Put channels that rotate together beside each other, as llama.cpp has them for a Llama."""
    halves = tensor.reshape(heads, 2, HEAD_DIM // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Add a unigram tokenizer: the kind of llama.cpp that takes whole words without merges."""
    kinds = [
        gguf.TokenType.UNKNOWN if token == "<unk>" else gguf.TokenType.CONTROL
        for token in SPECIAL_TOKENS
    ]
    writer.add_tokenizer_model("t5")
    writer.add_token_list([*SPECIAL_TOKENS, *(f"{_SPACE}{word}" for word in WORDS)])
    writer.add_token_scores([0.0] * len(SPECIAL_TOKENS) + [-1.0] * len(WORDS))
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * len(WORDS)])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)
    writer.add_chat_template(CHAT_TEMPLATE)
