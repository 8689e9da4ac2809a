"""One step of a ragged batch: tokens of several requests, each at its own place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvward.lab.interface import FloatArray, LayerWeights, LlamaConfig, LlamaWeights
from kvward.lab.model.pages import read_tokens, write_tokens
from kvward.lab.model.rope import rotary_tables, rotate


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The new tokens of one request in a step.

    Attributes:
        token_ids: (n,), n >= 1.
        start: Number of its tokens whose keys and values are in the pages already.
        block_table: Its blocks in order; holds at least start + n tokens.
        read_table: The blocks it attends to; None for those of `block_table`.
        num_logits: After how many of its last tokens logits are wanted, 1 to n.
    """

    token_ids: NDArray[np.intp]
    start: int
    block_table: NDArray[np.intp]
    read_table: NDArray[np.intp] | None = None
    num_logits: int = 1


def forward(
    weights: LlamaWeights, config: LlamaConfig, pages: FloatArray, segments: Sequence[Segment]
) -> FloatArray:
    """Compute the logits after the last tokens of every segment.

    In each layer the keys and values of all new tokens are written first, then every segment
    attends to its own pages, causally.

    Args:
        pages: (layers, 2, blocks, block_tokens, kv_heads, head_dim), changed in place.
    Returns:
        (sum of num_logits, vocab), segment by segment.
    """
    block_tokens = pages.shape[3]
    positions = np.concatenate([np.arange(s.start, s.start + len(s.token_ids)) for s in segments])
    slots = np.concatenate([_slots(s, block_tokens) for s in segments])
    bounds = np.cumsum([0, *(len(s.token_ids) for s in segments)])
    tables = rotary_tables(
        head_dim=config.head_dim, theta=config.rope_theta, num_positions=config.max_context_tokens
    )
    hidden = weights.embedding[np.concatenate([s.token_ids for s in segments])]
    for number, layer in enumerate(weights.layers):
        normed = _rms_norm(hidden, layer.attention_norm, config.rms_eps)
        q = rotate(_heads(normed @ layer.wq, config), positions, tables)
        k = rotate(_heads(normed @ layer.wk, config), positions, tables)
        write_tokens(pages[number], slots, k, _heads(normed @ layer.wv, config))
        attended = np.empty((len(hidden), config.num_heads * config.head_dim), np.float32)
        for segment, begin, end in zip(segments, bounds[:-1], bounds[1:], strict=True):
            table = segment.block_table if segment.read_table is None else segment.read_table
            keys, values = read_tokens(pages[number], table, segment.start + end - begin)
            attended[begin:end] = _attend(q[begin:end], keys, values)
        hidden = hidden + attended @ layer.wo
        hidden = hidden + _mlp(_rms_norm(hidden, layer.mlp_norm, config.rms_eps), layer)
    ends = zip(segments, bounds[1:], strict=True)
    wanted = hidden[np.concatenate([np.arange(end - s.num_logits, end) for s, end in ends])]
    return _rms_norm(wanted, weights.final_norm, config.rms_eps) @ weights.head


def _slots(segment: Segment, block_tokens: int) -> NDArray[np.intp]:
    places = np.arange(segment.start, segment.start + len(segment.token_ids))
    return segment.block_table[places // block_tokens] * block_tokens + places % block_tokens


def _heads(flat: FloatArray, config: LlamaConfig) -> FloatArray:
    return flat.reshape(len(flat), -1, config.head_dim)


def _rms_norm(x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
    scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
    normed: FloatArray = (x / scale) * weight
    return normed


def _mlp(x: FloatArray, layer: LayerWeights) -> FloatArray:
    gate = x @ layer.w_gate
    with np.errstate(over="ignore"):  # exp(-gate) = inf gives the right limit, 0
        gate /= 1 + np.exp(-gate)
    return (gate * (x @ layer.w_up)) @ layer.w_down


def _attend(q: FloatArray, keys: FloatArray, values: FloatArray) -> FloatArray:
    """Attend causally: queries are the last ones of the context.

    Args:
        q: (n, heads, head_dim). keys, values: (total, kv_heads, head_dim), total >= n.
    Returns:
        (n, heads * head_dim).
    """
    num_new, num_heads, head_dim = q.shape
    total, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    # (kv_heads, group * n, head_dim): the query heads of one key-value head as one matrix
    grouped = q.reshape(num_new, num_kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    scores: FloatArray = grouped.reshape(num_kv_heads, group * num_new, head_dim) @ keys.transpose(
        1, 2, 0
    )
    scores *= np.float32(head_dim**-0.5)
    if num_new > 1:
        later = np.triu(np.full((num_new, num_new), -np.inf, np.float32), k=1)
        view = scores.reshape(num_kv_heads, group, num_new, total)
        view[..., total - num_new :] += later
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: FloatArray = scores @ values.transpose(1, 0, 2)
    mixed /= scores.sum(axis=-1, keepdims=True)
    ungrouped = mixed.reshape(num_kv_heads, group, num_new, head_dim).transpose(2, 0, 1, 3)
    return ungrouped.reshape(num_new, num_heads * head_dim)
