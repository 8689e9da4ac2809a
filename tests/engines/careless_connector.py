"""A connector that serves tampered blocks on purpose: shows what refusing them has prevented.

It opens what the real connector would open, and then changes the plaintext before it reaches the
engine, as a store without authentication would have let it. Loaded by vLLM in tests only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvward.adapters.vllm import connector, worker_side
from kvward.scope.owner import ScopeOwner

_CONTROL = Path(os.environ["KVWARD_TEST_TAMPER"])  # holds the kind of change, or is not there
_FOREIGN = Path(os.environ["KVWARD_TEST_FOREIGN"])  # takes the first blocks that are kept


class CarelessWorkerSide(worker_side.WorkerSide):
    def _open(self, owner: ScopeOwner, hashes: Sequence[bytes], room: memoryview) -> list[bool]:
        opened = super()._open(owner, hashes, room)
        if _CONTROL.is_file():
            _change(_CONTROL.read_text().strip(), self._layout, room)
        return opened

    def _keep(self, blocks: Any, copy: memoryview) -> None:
        if not _FOREIGN.is_file():
            _FOREIGN.write_bytes(bytes(copy))
        super()._keep(blocks, copy)


def _change(kind: str, layout: Any, room: memoryview) -> None:
    values = np.frombuffer(room, dtype=np.float32)
    blocks = values.reshape(
        -1,
        sum(layout.layers_of_stage),
        layout.num_kv_heads,
        layout.block_tokens,
        layout.num_planes * layout.head_dim,
    )
    match kind:
        case "flip":
            values[:] = -values
        case "truncate":
            blocks[:, :, :, layout.block_tokens // 2 :] = 0
        case "swap":
            foreign = np.frombuffer(_FOREIGN.read_bytes(), dtype=np.float32)
            blocks[:] = foreign.reshape(blocks.shape)
        case "delete":
            values[:] = 0
        case "other-model":
            # What a model with other weights in its third layer leaves there.
            blocks[:, min(2, blocks.shape[1] - 1)] *= 1.5
        case "roll":
            blocks[:] = np.roll(blocks, 1, axis=3)
        case _:
            raise ValueError(kind)


connector.WorkerSide = CarelessWorkerSide  # type: ignore[misc]


class CarelessConnector(connector.KvwardConnector):
    """The real connector over a careless worker's half."""
