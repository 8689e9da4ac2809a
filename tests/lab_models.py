"""Small random Llama models, and a plain forward pass to hold the paged one against."""

from __future__ import annotations

import numpy as np

from kvward.lab.interface import FloatArray, LayerWeights, LlamaConfig, LlamaWeights


def small_config(*, num_layers: int = 2, num_heads: int = 4, num_kv_heads: int = 2) -> LlamaConfig:
    return LlamaConfig(
        vocab=50,
        hidden=24,
        intermediate=40,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=8,
        rms_eps=1e-5,
        rope_theta=10_000.0,
        max_context_tokens=256,
        tie_embeddings=False,
    )


def random_weights(config: LlamaConfig, *, seed: int) -> LlamaWeights:
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> FloatArray:
        return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    kv = config.num_kv_heads * config.head_dim
    q = config.num_heads * config.head_dim
    layers = tuple(
        LayerWeights(
            attention_norm=1 + matrix(config.hidden) / 10,
            wq=matrix(config.hidden, q),
            wk=matrix(config.hidden, kv),
            wv=matrix(config.hidden, kv),
            wo=matrix(q, config.hidden),
            mlp_norm=1 + matrix(config.hidden) / 10,
            w_gate=matrix(config.hidden, config.intermediate),
            w_up=matrix(config.hidden, config.intermediate),
            w_down=matrix(config.intermediate, config.hidden),
        )
        for _ in range(config.num_layers)
    )
    return LlamaWeights(
        embedding=matrix(config.vocab, config.hidden) * 5,
        layers=layers,
        final_norm=1 + matrix(config.hidden) / 10,
        head=matrix(config.hidden, config.vocab),
    )


def plain_logits(weights: LlamaWeights, config: LlamaConfig, tokens: list[int]) -> FloatArray:
    """Logits after every token: no pages, no batch, no cache; float64, one head at a time."""
    x = weights.embedding[tokens].astype(np.float64)
    n, half = len(tokens), config.head_dim // 2
    angle = np.arange(n)[:, None] * config.rope_theta ** (-np.arange(half) / half)
    turn = np.exp(1j * angle)

    def norm(v: np.ndarray, w: FloatArray) -> np.ndarray:
        return v / np.sqrt((v**2).mean(-1, keepdims=True) + config.rms_eps) * w

    def rope(v: np.ndarray) -> np.ndarray:
        turned = (v[:, :half] + 1j * v[:, half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=1)

    for layer in weights.layers:
        y = norm(x, layer.attention_norm)
        q, k, v = y @ layer.wq, y @ layer.wk, y @ layer.wv
        out = np.zeros((n, config.num_heads * config.head_dim))
        for head in range(config.num_heads):
            own = slice(head * config.head_dim, (head + 1) * config.head_dim)
            shared_head = head * config.num_kv_heads // config.num_heads
            shared = slice(shared_head * config.head_dim, (shared_head + 1) * config.head_dim)
            scores = rope(q[:, own]) @ rope(k[:, shared]).T / np.sqrt(config.head_dim)
            scores[np.triu_indices(n, 1)] = -np.inf
            share = np.exp(scores - scores.max(1, keepdims=True))
            out[:, own] = share / share.sum(1, keepdims=True) @ v[:, shared]
        x = x + out @ layer.wo
        y = norm(x, layer.mlp_norm)
        gate = y @ layer.w_gate
        x = x + (gate / (1 + np.exp(-gate)) * (y @ layer.w_up)) @ layer.w_down
    return (norm(x, weights.final_norm) @ weights.head).astype(np.float32)
