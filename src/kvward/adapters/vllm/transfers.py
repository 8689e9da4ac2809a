"""What the scheduler tells the worker each step: blocks to keep, blocks to bring back.

Goes through vLLM's own channel between the two, so it holds pseudonyms, hashes and block numbers:
no key and no token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kvward.scope.owner import ScopeOwner


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBlock:
    """A block in the engine's memory and its name in a store.

    Attributes:
        owner: Whose.
        chain_hash: 32 bytes.
        block_id: Where it lies in every layer.
    """

    owner: ScopeOwner
    chain_hash: bytes
    block_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """Blocks to bring back for one waiting request, in the order of its prompt."""

    request_id: str
    blocks: tuple[PlacedBlock, ...]


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """Transfers of one step.

    Attributes:
        loads: To start now.
        saves: Full once this step's forward pass has run.
        is_idle: Whether no forward pass runs in this step.
    """

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[PlacedBlock] = field(default_factory=list)
    is_idle: bool = False


def by_owner(
    blocks: Sequence[PlacedBlock],
) -> Iterator[tuple[ScopeOwner, list[PlacedBlock]]]:
    """Yield runs of blocks with one owner, in order."""
    for owner, run in groupby(blocks, key=lambda block: block.owner):
        yield owner, list(run)
