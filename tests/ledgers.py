"""Logs for tests: entries drawn from a seed, and folders with a log in them."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from kvward.ledger.append import LogAppender, begin_log
from kvward.ledger.checkpoint import Checkpoint
from kvward.ledger.entry import (
    CheckpointSeen,
    ContractPublished,
    EntriesDropped,
    Entry,
    EpochBegun,
    ErasureDone,
    EventsCounted,
    KeyRotated,
    PlanPublished,
    PolicyChanged,
    VerdictReached,
    encode_entry,
)
from kvward.ledger.names import Clause, CountedEvent, CountedReason, DropReason, SeedSource
from kvward.ledger.note import NoteSigner
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope

ORIGIN = "deployment/one"
SIGNER = NoteSigner(ORIGIN, bytes(range(32)))


def digest_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def counted(number: int) -> EventsCounted:
    """Return the entry that most logs are full of; each number gives another one."""
    return EventsCounted(
        at_unix_ms=1_800_000_000_000 + number,
        name=CountedEvent.STORE_REFUSED,
        reason=CountedReason.NOT_AUTHENTIC,
        count=1 + number,
        window_ms=60_000,
    )


def draw_entry(rng: random.Random) -> Entry:
    """Return an entry of any kind with any values."""

    def digest() -> str:
        return rng.randbytes(32).hex()

    at = rng.randrange(2**53)
    kinds = (
        lambda: PlanPublished(
            at_unix_ms=at,
            plan_digest=digest(),
            contract_digest=rng.choice([None, digest()]),
            seed_source=rng.choice(list(SeedSource)),
            seed_digest=rng.choice([None, digest()]),
        ),
        lambda: VerdictReached(
            at_unix_ms=at,
            clause=rng.choice([None, *Clause]),
            channel=rng.choice([None, *Channel]),
            scope=rng.choice([None, *ProbeScope]),
            tier=rng.choice([None, *CacheTier]),
            outcome=rng.choice(list(Outcome)),
            bound_ppb=rng.choice([None, 0, 10**9, rng.randrange(10**9)]),
            plan_digest=digest(),
            history_digest=digest(),
            report_digest=digest(),
        ),
        lambda: ContractPublished(at_unix_ms=at, contract_digest=digest(), version=1 + at // 2),
        lambda: PolicyChanged(at_unix_ms=at, policy_digest=digest()),
        lambda: EpochBegun(
            at_unix_ms=at,
            tenant_id=rng.randbytes(24).hex(),
            scope_id=rng.choice([None, rng.randbytes(24).hex()]),
            epoch=rng.randrange(2**53),
        ),
        lambda: ErasureDone(at_unix_ms=at, receipt_digest=digest()),
        lambda: EventsCounted(
            at_unix_ms=at,
            name=rng.choice(list(CountedEvent)),
            reason=rng.choice([None, *CountedReason]),
            count=1 + rng.randrange(2**40),
            window_ms=rng.randrange(2**40),
        ),
        lambda: EntriesDropped(
            at_unix_ms=at, reason=rng.choice(list(DropReason)), count=1 + rng.randrange(99)
        ),
        lambda: CheckpointSeen(
            at_unix_ms=at, origin_digest=digest(), size=at, root=digest(), note_digest=digest()
        ),
        lambda: KeyRotated(at_unix_ms=at, old_key_digest=digest(), new_key_digest=digest()),
    )
    made: Entry = rng.choice(kinds)()
    return made


def make_log(folder: Path, *groups: int, signer: NoteSigner = SIGNER) -> list[Checkpoint]:
    """Write a log of counts in groups of these sizes; return all checkpoints, from size 0 on."""
    checkpoints = [begin_log(folder, signer)]
    appender = LogAppender(folder, signer, known=None)
    for group in groups:
        first = appender.checkpoint.size
        entries = [encode_entry(counted(first + number)) for number in range(group)]
        checkpoints.append(appender.append(entries))
    appender.close()
    return checkpoints
