"""Tokens per second of the lab: prefill, decode, and what a cached prefix saves.

Baselines of the same run: for prefill and decode, the tokens per second that the machine's own
matrix product would allow for the linear layers alone; for a hit, the time to recompute.
SmolLM2 is measured when it has been fetched (`kvward lab fetch smollm2`).
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the served engine has

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from figures import Figure, publish
from kvward.audit.canary.checkpoint import write_canary_model
from kvward.errors import ModelLoadError
from kvward.lab.behaviour import SOUND
from kvward.lab.fetch import find_model
from kvward.lab.interface import EngineOptions, GenerationRequest, SamplingParams, TokenEvent
from kvward.lab.loading import LoadedModel, load_model
from kvward.lab.scheduler import Scheduler

ROUNDS = 3


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        write_canary_model(Path(folder))
        figures = measure(load_model(Path(folder), name="canary"), prompt=768, tokens=100)
    try:
        smollm2 = load_model(find_model("smollm2"), name="smollm2")
    except ModelLoadError as exc:
        print(f"{exc.message} {exc.hint}", file=sys.stderr)
    else:
        figures += measure(smollm2, prompt=256, tokens=12)
    return publish("lab", figures)


def measure(model: LoadedModel, *, prompt: int, tokens: int) -> list[Figure]:
    floor_wide = matmul_tokens_per_s(model, rows=256)
    figures = []
    for batch in (1, 16):
        floor = matmul_tokens_per_s(model, rows=batch)
        prefill = median(lambda b=batch: rate(model, b, prompt, 1, "prefill_tokens"))
        decode = median(lambda b=batch: rate(model, b, 16, tokens, "decode_tokens"))
        figures += [
            Figure(name=f"{model.name} prefill, batch {batch}", value=prefill, unit="tokens/s",
                   baseline=floor_wide),
            Figure(name=f"{model.name} decode, batch {batch}", value=decode, unit="tokens/s",
                   baseline=floor),
        ]  # fmt: skip
    miss, hit = miss_and_hit_s(model, prompt)
    figures.append(
        Figure(name=f"{model.name} miss over hit, {prompt} tokens", value=miss * 1e3, unit="ms",
               baseline=hit * 1e3, bar=2.0)
    )  # fmt: skip
    return figures


def median(run) -> float:
    return statistics.median(run() for _ in range(ROUNDS))


def scheduler_of(model: LoadedModel, *, cache: bool) -> Scheduler:
    options = EngineOptions(num_blocks=2048, prefix_cache=cache)
    manifest = model.manifest(block_tokens=options.block_tokens)
    return Scheduler(model.weights, model.config, options, behaviour=SOUND, ward=None,
                     manifest_digest=manifest.digest())  # fmt: skip


def submit(scheduler: Scheduler, name: str, prompt: list[int], max_tokens: int) -> None:
    def listen(event: TokenEvent) -> None:
        pass

    sampling = SamplingParams(max_tokens=max_tokens, top_logprobs=20, ignore_eos=True)
    scheduler.submit(
        GenerationRequest(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling,
                          cache_salt=None),
        listen,
    )  # fmt: skip


def drain(scheduler: Scheduler) -> float:
    began = time.perf_counter()
    while scheduler.has_work:
        scheduler.step()
    return time.perf_counter() - began


def rate(model: LoadedModel, batch: int, prompt: int, max_tokens: int, kind: str) -> float:
    scheduler = scheduler_of(model, cache=False)
    random = np.random.default_rng(0)
    for number in range(batch):
        submit(scheduler, str(number), random.integers(8, 200, prompt).tolist(), max_tokens)
    seconds = drain(scheduler)
    return scheduler.stats[kind] / seconds


def miss_and_hit_s(model: LoadedModel, prompt: int) -> tuple[float, float]:
    scheduler = scheduler_of(model, cache=True)
    random = np.random.default_rng(0)
    misses, hits = [], []
    for number in range(5):
        tokens = random.integers(8, 200, prompt).tolist()
        for times in (misses, hits):
            submit(scheduler, f"{number}", tokens, 1)
            times.append(drain(scheduler))
    return statistics.median(misses), statistics.median(hits)


def matmul_tokens_per_s(model: LoadedModel, *, rows: int) -> float:
    """Tokens per second of the linear layers alone, done as plain products of this size."""
    layer = model.weights.layers[0]
    matrices = [layer.wq, layer.wk, layer.wv, layer.wo, layer.w_gate, layer.w_up, layer.w_down]
    inputs = [np.ones((rows, matrix.shape[0]), np.float32) for matrix in matrices]
    repeats = 1 + 2000 // rows // model.config.num_layers
    for value, matrix in zip(inputs, matrices, strict=True):
        value @ matrix
    began = time.perf_counter()
    for _ in range(repeats):
        for _ in range(model.config.num_layers):
            for value, matrix in zip(inputs, matrices, strict=True):
                value @ matrix
    return rows * repeats / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
