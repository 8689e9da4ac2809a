"""A load that makes the lab's engine share, evict, preempt, offload and cancel."""

from __future__ import annotations

import numpy as np

from lab_schedules import Ask

SALTS = ("salt-a", "salt-b")


def mixed_load(
    *,
    seed: int,
    num_asks: int = 80,
    salts: tuple[str, ...] = SALTS,
    moments: int = 120,
    leaving: float = 0.2,
) -> list[Ask]:
    """Few prefixes and many other prompts, some of whose clients leave soon."""
    random = np.random.default_rng(seed)
    prefixes = [tuple(random.integers(0, 50, 24).tolist()) for _ in range(4)]
    asks = []
    for _ in range(num_asks):
        arrives = int(random.integers(0, moments))
        if random.random() < 0.6:
            prompt = prefixes[int(random.integers(4))]
            prompt += tuple(random.integers(0, 50, int(random.integers(1, 9))).tolist())
        else:
            prompt = tuple(random.integers(0, 50, int(random.integers(10, 50))).tolist())
        leaves = arrives + int(random.integers(0, 6)) if random.random() < leaving else None
        asks.append(
            Ask(
                prompt=prompt,
                max_tokens=int(random.integers(1, 10)),
                arrives=arrives,
                salt=salts[int(random.integers(len(salts)))],
                leaves=leaves,
            )
        )
    return asks
