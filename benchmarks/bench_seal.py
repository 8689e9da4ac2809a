"""Sealing and opening blocks against raw AES-256-GCM of the same library, and against peers.

Usage: python benchmarks/bench_seal.py [--no-peers]
Raw is `encrypt_into` and `decrypt_into` under one key with the same associated data; ours derives a
key for every block, builds header and associated data, and checks them. Baseline and subject take
turns in short rounds; the fastest round of each counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from figures import Figure, publish
from kvward.scope import NameKey, SealKey
from kvward.scope.derive import derive_block_name
from kvward.seal import (
    OVERHEAD_BYTES,
    BlockSealer,
    Lifetime,
    OpenJob,
    SealJob,
    open_many,
    seal_many,
)

SIZES = {"64 KiB": 65_536, "737,280 B": 737_280, "1 MiB": 1 << 20, "4 MiB": 4 << 20}
ROUNDS = 150
ROUND_BYTES = 1 << 20
NAME, LAYOUT, NONCE = b"n" * 64, b"l" * 32, b"i" * 12
ALL_TIMES = Lifetime(oldest_unix_s=0, newest_unix_s=2**40)


def fastest(work: Mapping[str, Callable[[], object]], *, turns: int) -> dict[str, float]:
    """Return seconds of one call of each, fastest of many short rounds, in turn with the others.

    Each round begins with a call that is not timed: it brings the memory of this work back into
    the processor's cache after the work before it.
    """
    best = dict.fromkeys(work, float("inf"))
    for _ in range(ROUNDS):
        for name, call in work.items():
            call()
            began = time.perf_counter()
            for _ in range(turns):
                call()
            best[name] = min(best[name], (time.perf_counter() - began) / turns)
    return best


def one_thread(label: str, size: int, *, peers: bool) -> list[Figure]:
    block, out = bytearray(os.urandom(size)), memoryview(bytearray(size))
    raw_out = bytearray(size + 16)
    sealed = memoryview(bytearray(size + OVERHEAD_BYTES))
    raw = AESGCM(os.urandom(32))
    sealer = BlockSealer(SealKey(os.urandom(32)), epoch=1)

    def seal() -> None:
        sealer.seal_into(
            block, sealed, name=NAME, layout_digest=LAYOUT, created_unix_s=1, nonce=os.urandom(24)
        )

    raw.encrypt_into(NONCE, block, NAME, raw_out)
    seal()
    work: dict[str, Callable[[], object]] = {
        "raw seal": lambda: raw.encrypt_into(NONCE, block, NAME, raw_out),
        "seal": seal,
        "raw open": lambda: raw.decrypt_into(NONCE, raw_out, NAME, out),
        "open": lambda: sealer.open_into(
            sealed, out, name=NAME, layout_digest=LAYOUT, lifetime=ALL_TIMES
        ),
    }
    turns = max(1, ROUND_BYTES // size)
    best = fastest(work, turns=turns)
    others = []
    if peers:
        from sealing_peers import lmcache_peer, pqc_peer

        others = [lmcache_peer(size), pqc_peer(size)]
        for peer in others:
            best |= fastest(
                {
                    f"{peer.name} seal": peer.seal,
                    f"seal beside {peer.name}": seal,
                    f"{peer.name} open": peer.open,
                    f"open beside {peer.name}": work["open"],
                },
                turns=turns,
            )
    figures = []
    for verb in ("seal", "open"):
        bar = 0.85 if label == "1 MiB" else None
        rate, floor = size / best[verb] / 1e9, size / best[f"raw {verb}"] / 1e9
        figures.append(
            Figure(name=f"{verb} {label}", value=rate, unit="GB/s", baseline=floor, bar=bar)
        )
        figures.append(
            Figure(
                name=f"{verb} {label}, above raw",
                value=(best[verb] - best[f"raw {verb}"]) * 1e6,
                unit="µs",
                bar=18.0,
                at_most=True,
            )
        )
        figures += [
            Figure(
                name=f"{verb} {label}, against {peer.name}",
                value=size / best[f"{verb} beside {peer.name}"] / 1e9,
                unit="GB/s",
                baseline=size / best[f"{peer.name} {verb}"] / 1e9,
            )
            for peer in others
        ]
    return figures


def two_threads(label: str, size: int, pool: ThreadPoolExecutor) -> list[Figure]:
    count = max(4, (16 << 20) // size)
    blocks = [bytearray(os.urandom(size)) for _ in range(count)]
    seals = [memoryview(bytearray(size + OVERHEAD_BYTES)) for _ in blocks]
    outs = [memoryview(bytearray(size)) for _ in blocks]
    raws = [bytearray(size + 16) for _ in blocks]
    raw = AESGCM(os.urandom(32))
    sealer = BlockSealer(SealKey(os.urandom(32)), epoch=1)
    seal_jobs = [
        SealJob(
            sealer=sealer, block=block, out=out, name=NAME, layout_digest=LAYOUT,
            nonce=os.urandom(24),
        )
        for block, out in zip(blocks, seals, strict=True)
    ]  # fmt: skip
    open_jobs = [
        OpenJob(sealer=sealer, sealed=data, out=out, name=NAME, layout_digest=LAYOUT)
        for data, out in zip(seals, outs, strict=True)
    ]
    places = range(count)

    def raw_seal(place: int) -> None:
        raw.encrypt_into(NONCE, blocks[place], NAME, raws[place])

    def raw_open(place: int) -> None:
        raw.decrypt_into(NONCE, raws[place], NAME, outs[place])

    list(map(raw_seal, places))
    seal_many(seal_jobs, created_unix_s=1, executor=None)
    best = fastest(
        {
            "raw seal": lambda: list(pool.map(raw_seal, places)),
            "seal": lambda: seal_many(seal_jobs, created_unix_s=1, executor=pool),
            "raw open": lambda: list(pool.map(raw_open, places)),
            "open": lambda: open_many(open_jobs, lifetime=ALL_TIMES, executor=pool),
        },
        turns=1,
    )
    return [
        Figure(
            name=f"{verb} {label}, two threads",
            value=count * size / best[verb] / 1e9,
            unit="GB/s",
            baseline=count * size / best[f"raw {verb}"] / 1e9,
        )
        for verb in ("seal", "open")
    ]


def scatter(size: int) -> Figure:
    """What the rule costs that nothing is opened into an engine's pages: one copy more."""
    sealer = BlockSealer(SealKey(os.urandom(32)), epoch=1)
    sealed = memoryview(bytearray(size + OVERHEAD_BYTES))
    staging, pages = memoryview(bytearray(size)), memoryview(bytearray(size))
    sealer.seal_into(
        bytes(size), sealed, name=NAME, layout_digest=LAYOUT, created_unix_s=1, nonce=os.urandom(24)
    )

    def into_staging() -> None:
        sealer.open_into(sealed, staging, name=NAME, layout_digest=LAYOUT, lifetime=ALL_TIMES)

    def into_pages() -> None:
        into_staging()
        pages[:] = staging

    best = fastest({"staging": into_staging, "pages": into_pages}, turns=20)
    return Figure(
        name="open 1 MiB and copy it to pages, against staging alone",
        value=size / best["pages"] / 1e9,
        unit="GB/s",
        baseline=size / best["staging"] / 1e9,
    )


def naming() -> Figure:
    key, chain_hash = NameKey(os.urandom(32)), os.urandom(32)
    best = fastest({"name": lambda: derive_block_name(key, chain_hash, 0, 0, 0, 0, 30)}, turns=100)
    return Figure(name="name of a stored block", value=best["name"] * 1e6, unit="µs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-peers", action="store_true", help="fetch nothing, compare with raw")
    peers = not parser.parse_args().no_peers
    figures = []
    for label, size in SIZES.items():
        figures += one_thread(label, size, peers=peers)
    with ThreadPoolExecutor(2) as pool:
        for label, size in SIZES.items():
            figures += two_threads(label, size, pool)
    figures += [scatter(1 << 20), naming()]
    return publish("seal", figures)


if __name__ == "__main__":
    sys.exit(main())
