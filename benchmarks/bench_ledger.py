"""What a ledger costs: appending, room on disk, verification; against raw writing and raw hashing.

Usage: python benchmarks/bench_ledger.py [--entries 1000000] [--folder DIR]
Floors of the same run: the entries' bytes written to one file and synchronised as often as the
ledger publishes, and SHA-256 over the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from figures import Figure, publish
from kvward.ledger.append import LogAppender, begin_log
from kvward.ledger.entry import (
    EventsCounted,
    PlanPublished,
    VerdictReached,
    encode_entry,
)
from kvward.ledger.names import Clause, CountedEvent, CountedReason, SeedSource
from kvward.ledger.note import NoteSigner
from kvward.ledger.proof import prove_consistency, prove_inclusion
from kvward.ledger.tiles import LogFolder
from kvward.ledger.verify import verify_log
from kvward.ledger.writer import QUEUE_ENTRIES, LedgerWriter
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope

SIGNER = NoteSigner("bench/one", bytes(range(32)))
_DURABLE = 200
_PROOFS = 200
_GROUP = QUEUE_ENTRIES // 2


def mixed(count: int) -> Iterator[EventsCounted | PlanPublished | VerdictReached]:
    """Yield what a busy deployment would write: counts, and one in ten of an audit."""
    rng = random.Random(1)
    events, reasons = list(CountedEvent), list(CountedReason)
    for number in range(count):
        at = 1_800_000_000_000 + number
        if number % 10 == 9:
            digest = rng.randbytes(32).hex()
            yield VerdictReached(
                at_unix_ms=at, clause=Clause.SCOPE, channel=Channel.CONTENT, scope=ProbeScope.S3,
                tier=CacheTier.DEVICE, outcome=Outcome.NOT_OBSERVED, bound_ppb=300_000,
                plan_digest=digest, history_digest=digest, report_digest=digest,
            )  # fmt: skip
        elif number % 1000 == 0:
            yield PlanPublished(
                at_unix_ms=at, plan_digest=rng.randbytes(32).hex(), contract_digest=None,
                seed_source=SeedSource.DRAWN, seed_digest=None,
            )  # fmt: skip
        else:
            yield EventsCounted(
                at_unix_ms=at, name=rng.choice(events), reason=rng.choice(reasons),
                count=1 + number % 97, window_ms=60_000,
            )  # fmt: skip


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    """Append how long the block took, in seconds."""
    began = time.perf_counter()
    yield
    into.append(time.perf_counter() - began)


def seconds_of(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    found: list[float] = []
    with timed(found):
        call()
    return found[0]


def raw_write(path: Path, groups: Sequence[bytes]) -> None:
    """Write and synchronise, group after group."""
    with path.open("wb", buffering=0) as file:
        for group in groups:
            file.write(group)
            os.fsync(file.fileno())


def sustained(folder: Path, count: int) -> list[Figure]:
    """Append as fast as the writer takes it, and count what lies on disk then."""
    entries = list(mixed(count))
    data = [encode_entry(entry) for entry in entries]
    groups = [b"".join(data[first : first + _GROUP]) for first in range(0, count, _GROUP)]
    raw_bytes = sum(map(len, groups))
    raw_s = seconds_of(lambda: raw_write(folder / "raw", groups))
    (folder / "raw").unlink()
    begin_log(folder / "log", SIGNER)
    call_s, spent = 0.0, []
    with LedgerWriter(folder / "log", SIGNER, known=None) as writer, timed(spent):
        for first in range(0, count, _GROUP):
            calls: list[float] = []
            with timed(calls):
                for entry in entries[first : first + _GROUP]:
                    writer.append(entry)
            call_s += calls[0]
            writer.flush(timeout_s=600)
        assert writer.num_dropped == 0
    on_disk = sum(path.stat().st_blocks * 512 for path in (folder / "log").rglob("*"))
    million = 1e6 / count
    return [
        Figure(
            name="append, sustained and durable",
            value=count / spent[0],
            unit="entries/s",
            baseline=count / raw_s,
        ),
        Figure(name="append, what the caller waits", value=call_s / count * 1e6, unit="µs"),
        Figure(
            name="room of a million entries",
            value=on_disk * million / 1e6,
            unit="MB",
            baseline=raw_bytes * million / 1e6,
            bar=1.6,
            at_most=True,
        ),
    ]


def durable(folder: Path) -> list[Figure]:
    """Append one entry at a time and wait for it, beside raw writes of the same bytes."""
    begin_log(folder / "durable", SIGNER)
    entries = list(mixed(_DURABLE))
    ours: list[float] = []
    raw: list[float] = []
    with (
        LedgerWriter(folder / "durable", SIGNER, known=None) as writer,
        (folder / "raw").open("wb", buffering=0) as file,
    ):
        for entry in entries:
            with timed(raw):
                file.write(encode_entry(entry))
                os.fsync(file.fileno())
            with timed(ours):
                writer.append_durable(entry)
    return [
        Figure(
            name="append one and wait, median",
            value=statistics.median(ours) * 1e3,
            unit="ms",
            baseline=statistics.median(raw) * 1e3,
        )
    ]


def hashing_floors(log: LogFolder, count: int) -> tuple[float, float]:
    """Return the seconds of hashing all entries' bytes at once, and of hashing each for itself."""
    data, sha256 = list(log.iter_entries(count)), hashlib.sha256
    together = b"".join(data)
    return (
        min(seconds_of(lambda: sha256(together)) for _ in range(3)),
        min(
            seconds_of(lambda: [sha256(b"\x00" + entry).digest() for entry in data])
            for _ in range(3)
        ),
    )


def verification(folder: Path, count: int) -> list[Figure]:
    """Verify the log from its first entry, and hash the same bytes."""
    raw_s, leaves_s = hashing_floors(LogFolder(folder / "log"), count)
    verify_s = seconds_of(lambda: verify_log(folder / "log", [SIGNER.verifier], None))
    million = 1e6 / count
    return [
        Figure(
            name="verify a million entries, against SHA-256 of their bytes at once",
            value=verify_s * million,
            unit="s",
            baseline=raw_s * million,
        ),
        Figure(
            name="verify a million entries, against SHA-256 of each",
            value=verify_s * million,
            unit="s",
            baseline=leaves_s * million,
            bar=30.0,
            at_most=True,
        ),
        Figure(
            name="verify a million entries, time",
            value=verify_s * million,
            unit="s",
            bar=60.0,
            at_most=True,
        ),
    ]


def proofs(folder: Path, count: int) -> list[Figure]:
    """Prove from tiles, and open for writing."""
    rng, log = random.Random(1), folder / "log"
    verifiers = [SIGNER.verifier]
    inclusion = [
        seconds_of(lambda: prove_inclusion(log, rng.randrange(count), verifiers=verifiers))
        for _ in range(_PROOFS)
    ]
    consistency = [
        seconds_of(lambda: prove_consistency(log, rng.randint(1, count), verifiers=verifiers))
        for _ in range(_PROOFS)
    ]
    opening = seconds_of(lambda: LogAppender(log, SIGNER, known=None).close())
    return [
        Figure(name="prove inclusion, median", value=statistics.median(inclusion) * 1e3, unit="ms"),
        Figure(
            name="prove consistency, median", value=statistics.median(consistency) * 1e3, unit="ms"
        ),
        Figure(name="open for writing", value=opening * 1e3, unit="ms"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kvward-bench-ledger-", dir=arguments.folder))
    try:
        figures = [
            *sustained(folder, arguments.entries),
            *durable(folder),
            *verification(folder, arguments.entries),
            *proofs(folder, arguments.entries),
        ]
    finally:
        shutil.rmtree(folder)
    return publish("ledger", figures)


if __name__ == "__main__":
    sys.exit(main())
