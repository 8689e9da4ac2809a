"""Many blocks at once, over threads: the cipher lets go of the interpreter while it works."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from kvward.errors import OpenError
from kvward.seal.envelope import BlockSealer, Lifetime
from kvward.seal.header import OpenRefusal
from kvward.seal.xaes import Buffer

# Below this, handing a block to another thread costs more than the block.
_THREAD_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class SealJob:
    """One block to seal; see `BlockSealer.seal_into`."""

    sealer: BlockSealer
    block: Buffer
    out: memoryview
    name: bytes
    layout_digest: bytes
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """One block to open; see `BlockSealer.open_into`."""

    sealer: BlockSealer
    sealed: Buffer
    out: memoryview
    name: bytes
    layout_digest: bytes


def seal_many(jobs: Sequence[SealJob], *, created_unix_s: int, executor: Executor | None) -> None:
    """Seal blocks into their own memory.

    Args:
        executor: Threads to spread large blocks over; None works in the caller's.
    """

    def seal(job: SealJob) -> None:
        job.sealer.seal_into(
            job.block,
            job.out,
            name=job.name,
            layout_digest=job.layout_digest,
            created_unix_s=created_unix_s,
            nonce=job.nonce,
        )

    if executor is None or sum(len(job.out) for job in jobs) < 2 * _THREAD_BYTES:
        for job in jobs:
            seal(job)
    else:
        list(executor.map(seal, jobs))


def open_many(
    jobs: Sequence[OpenJob], *, lifetime: Lifetime, executor: Executor | None
) -> list[OpenRefusal | None]:
    """Open blocks into private memory, each for itself.

    Returns:
        For each block None when it opened, else why it did not; then its memory is zero.
    """

    def open_one(job: OpenJob) -> OpenRefusal | None:
        try:
            job.sealer.open_into(
                job.sealed,
                job.out,
                name=job.name,
                layout_digest=job.layout_digest,
                lifetime=lifetime,
            )
        except OpenError as exc:
            return OpenRefusal(exc.reason or OpenRefusal.NOT_AUTHENTIC)
        return None

    if executor is None or sum(len(job.out) for job in jobs) < 2 * _THREAD_BYTES:
        return [open_one(job) for job in jobs]
    return list(executor.map(open_one, jobs))
