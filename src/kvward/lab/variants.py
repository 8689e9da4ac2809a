"""Models that one engine runs under several names: a base, and adapters of low rank over it.

Adapters and the base's weights can be loaded again in place, under the same name; then the name
says nothing about the weights any more, and only a digest of their bytes does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from kvward.canonical import encode
from kvward.errors import UsageError
from kvward.lab.interface import FloatArray, LayerWeights, LlamaWeights

_RANK = 2
_STRENGTH = 0.1  # of a weight's own spread: the model stays what it is, its keys and values do not


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variant:
    """What a request runs on. A running request keeps the one that it began with.

    Attributes:
        adapter: Its name; None for the base.
        first_digest: Names the base as the engine was started with it, 32 bytes.
        base_digest: Names the base as it is now, 32 bytes.
        delta_digest: Over the adapter's bytes, 32 bytes; None for the base.
    """

    adapter: str | None
    weights: LlamaWeights
    first_digest: bytes
    base_digest: bytes
    delta_digest: bytes | None


class Variants:
    """The base and its adapters. Changed in the engine's thread, asked from any.

    Args:
        manifest_digest: Names the exact base model.
    """

    def __init__(self, weights: LlamaWeights, *, manifest_digest: bytes) -> None:
        self._first_weights = weights
        self._seeds: dict[str, int] = {}
        base = Variant(
            adapter=None,
            weights=weights,
            first_digest=manifest_digest,
            base_digest=manifest_digest,
            delta_digest=None,
        )
        self._loaded: dict[str | None, Variant] = {None: base}

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the names of the adapters."""
        return tuple(name for name in self._loaded.copy() if name is not None)

    def find(self, adapter: str | None) -> Variant:
        """Return what a name stands for now.

        Raises:
            UsageError: There is no such adapter.
        """
        variant = self._loaded.get(adapter)
        if variant is None:
            raise UsageError(f"There is no adapter {adapter}.")
        return variant

    def load_adapter(self, name: str, *, seed: int) -> None:
        """Load an adapter, in place of one of the same name; its numbers follow from the seed."""
        base = self._loaded[None]
        weights, digest = _add_delta(base.weights, seed=seed)
        self._seeds[name] = seed
        self._loaded[name] = replace(base, adapter=name, weights=weights, delta_digest=digest)

    def load_base(self, *, seed: int) -> None:
        """Load other weights in place of the base's; adapters are put over them anew."""
        base = self._loaded[None]
        weights, digest = _add_delta(self._first_weights, seed=seed)
        together = encode("kvward/lab/base/v1", base.first_digest, digest)
        self._loaded[None] = replace(
            base, weights=weights, base_digest=hashlib.sha256(together).digest()
        )
        for name, adapter_seed in self._seeds.items():
            self.load_adapter(name, seed=adapter_seed)


def _add_delta(weights: LlamaWeights, *, seed: int) -> tuple[LlamaWeights, bytes]:
    """Return the weights with a change of low rank to keys and values, and its digest."""
    random = np.random.default_rng(seed)
    hashed = hashlib.sha256()

    def changed(matrix: FloatArray) -> FloatArray:
        down = random.standard_normal((matrix.shape[0], _RANK)).astype(np.float32)
        up = random.standard_normal((_RANK, matrix.shape[1])).astype(np.float32)
        hashed.update(down.tobytes() + up.tobytes())
        spread = np.float32(_STRENGTH / _RANK**0.5) * matrix.std()
        result: FloatArray = matrix + spread * (down @ up)
        return result

    def layer(old: LayerWeights) -> LayerWeights:
        return replace(old, wk=changed(old.wk), wv=changed(old.wv))

    return replace(weights, layers=tuple(layer(old) for old in weights.layers)), hashed.digest()
