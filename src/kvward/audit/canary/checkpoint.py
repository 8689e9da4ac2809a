"""The glass-box checkpoint: a Llama whose logits say which words the attended cache holds.

One layer. The residual stream has three parts: a one-hot of the token, a constant, a read-out.

```
residual  0 .. 263        one-hot of the token (8 special tokens, 256 words)
          264             constant 1
          265 .. 520      read-out of the 256 words, zero before attention
          521 .. 543      padding, always zero
```

* W_v copies the one-hot of words: key-value head h carries words 64 h to 64 h + 63.
* Each key-value head serves two query heads. The *counting* head has W_q = 0: its attention is a
  plain average, so its output is the share of every word in the context. The *order* head has a
  constant query; keys are constant too, so rotary embedding makes its score a function of distance
  alone, and its output the share of every word weighted by how far back it stands. A shuffled
  context, or a damaged key, changes it.
* W_o adds both into the read-out, the MLP is zero, and the head reads the read-out with a gain.

So a word that is not in the attended cache has logit exactly 0, all such words are exactly tied
(the *floor*), and one foreign slot among thousands lifts its word above the floor. Special tokens
get a constant negative logit and never reach the top.

Limits: it exercises plain grouped-query attention only, no MLA, MoE, sliding window, hybrid or
speculative path; and a value that is lost entirely only shows as a changed share.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from kvward.audit.canary.words import WORDS
from kvward.errors import ConfigError

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>", "<system>", "<user>", "<assistant>", "<tool>")
VOCABULARY = len(SPECIAL_TOKENS) + len(WORDS)
HIDDEN = 544
HEAD_DIM = 64
KV_HEADS = len(WORDS) // HEAD_DIM
HEADS = 2 * KV_HEADS
INTERMEDIATE = 32
MAX_CONTEXT_TOKENS = 8192
ROPE_THETA = 10_000.0
RMS_EPS = 1e-5
DEFAULT_GAIN = 512.0
SPECIAL_LOGIT = -10.0

_CONSTANT = VOCABULARY
_READ_OUT = VOCABULARY + 1
_NORMALISED = math.sqrt(HIDDEN / 2)  # value of a 1 after RMSNorm of (one-hot + constant)
# Rotary pairs of the order head, and the height of their cosines in nats: periods of 63, 628 and
# 6,283 tokens, so that neighbours differ by a tenth and the ends of a long context differ too.
ORDER_PAIRS = (8, 16, 24)
ORDER_NATS = 1.0

FloatArray = NDArray[np.float32]

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_canary_model(folder: Path, *, gain: float = DEFAULT_GAIN) -> None:
    """Write checkpoint and tokenizer to a folder: the same bytes for the same gain.

    Args:
        folder: Made if it is not there. Files of these names in it are replaced, each at once:
            who reads them meanwhile finds the old or the new one, whole.
        gain: Height of the logits. At 512, one foreign slot among 8,000 lifts its word by at
            least 0.3 nat in float32.
    Raises:
        ConfigError: The folder cannot be written.
    """
    files = {
        "config.json": _json(_config()),
        "generation_config.json": _json({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}),
        "model.safetensors": save(canary_tensors(gain=gain), metadata={"format": "pt"}),
        "tokenizer.json": _json(_tokenizer()),
        "tokenizer_config.json": _json(_tokenizer_config()),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".canary-", dir=folder) as unfinished:
            for name, content in files.items():
                part = Path(unfinished) / name
                part.write_bytes(content)
                part.replace(folder / name)
    except OSError as exc:
        raise ConfigError(
            f"The canary model cannot be written to {folder}: {exc.strerror}.",
            hint="Name a folder that can be written.",
        ) from exc


def canary_tensors(*, gain: float) -> dict[str, FloatArray]:
    """Return the tensors under the names of the Llama architecture, (out, in), float32."""
    word = np.arange(len(WORDS))
    head, channel = word // HEAD_DIM, word % HEAD_DIM

    embedding = np.zeros((VOCABULARY, HIDDEN), np.float32)
    embedding[np.arange(VOCABULARY), np.arange(VOCABULARY)] = 1
    embedding[:, _CONSTANT] = 1

    query = np.zeros((HEADS, HEAD_DIM, HIDDEN), np.float32)
    key = np.zeros((KV_HEADS, HEAD_DIM, HIDDEN), np.float32)
    side = math.sqrt(ORDER_NATS * math.sqrt(HEAD_DIM))
    for pair in ORDER_PAIRS:
        query[1::2, pair, _CONSTANT] = side / _NORMALISED
        key[:, pair, _CONSTANT] = side / _NORMALISED

    value = np.zeros((KV_HEADS, HEAD_DIM, HIDDEN), np.float32)
    value[head, channel, len(SPECIAL_TOKENS) + word] = 1 / _NORMALISED

    output = np.zeros((HIDDEN, HEADS, HEAD_DIM), np.float32)
    output[_READ_OUT + word, 2 * head, channel] = 1
    output[_READ_OUT + word, 2 * head + 1, channel] = 1

    lm_head = np.zeros((VOCABULARY, HIDDEN), np.float32)
    lm_head[len(SPECIAL_TOKENS) + word, _READ_OUT + word] = gain
    lm_head[: len(SPECIAL_TOKENS), _CONSTANT] = SPECIAL_LOGIT

    layer = "model.layers.0."
    return {
        "model.embed_tokens.weight": embedding,
        layer + "input_layernorm.weight": np.ones(HIDDEN, np.float32),
        layer + "self_attn.q_proj.weight": query.reshape(HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.k_proj.weight": key.reshape(KV_HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.v_proj.weight": value.reshape(KV_HEADS * HEAD_DIM, HIDDEN),
        layer + "self_attn.o_proj.weight": output.reshape(HIDDEN, HEADS * HEAD_DIM),
        layer + "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        layer + "mlp.gate_proj.weight": np.zeros((INTERMEDIATE, HIDDEN), np.float32),
        layer + "mlp.up_proj.weight": np.zeros((INTERMEDIATE, HIDDEN), np.float32),
        layer + "mlp.down_proj.weight": np.zeros((HIDDEN, INTERMEDIATE), np.float32),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": lm_head,
    }


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": MAX_CONTEXT_TOKENS,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": 0,
        "rms_norm_eps": RMS_EPS,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def _tokenizer() -> dict[str, object]:
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *WORDS))}
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, token in enumerate(SPECIAL_TOKENS)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": "<s>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "</s>",
        "model_max_length": MAX_CONTEXT_TOKENS,
        "pad_token": "<pad>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
