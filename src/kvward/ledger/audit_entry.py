"""The entries that one audit leaves in a log: its plan, and a verdict for each cell.

Pure: whoever has the facts of an audit can make the entries again and look for them.
"""

from __future__ import annotations

import hashlib

from kvward.ledger.entry import PlanPublished, VerdictReached
from kvward.ledger.names import SeedSource
from kvward.ledger.statement import AuditFacts


def plan_entry(
    plan_digest: str,
    *,
    at_unix_ms: int,
    contract_digest: str | None,
    third_party_seed: bytes | None = None,
    seed_was_given: bool = False,
) -> PlanPublished:
    """Return the entry that is written before an audit's first request.

    Args:
        third_party_seed: What somebody else gave for a seed; None where nobody did.
        seed_was_given: Whether whoever audits chose the seed, instead of drawing it.
    """
    if third_party_seed is not None:
        source = SeedSource.THIRD_PARTY
    else:
        source = SeedSource.GIVEN if seed_was_given else SeedSource.DRAWN
    return PlanPublished(
        at_unix_ms=at_unix_ms,
        plan_digest=plan_digest,
        contract_digest=contract_digest,
        seed_source=source,
        seed_digest=None
        if third_party_seed is None
        else hashlib.sha256(third_party_seed).hexdigest(),
    )


def verdict_entries(facts: AuditFacts, *, at_unix_ms: int) -> list[VerdictReached]:
    """Return the entries that are written when an audit was decided, in the plan's order."""
    return [
        VerdictReached(
            at_unix_ms=at_unix_ms,
            clause=cell.clause,
            channel=cell.channel,
            scope=cell.scope,
            tier=cell.tier,
            outcome=cell.outcome,
            bound_ppb=cell.bound_ppb,
            plan_digest=facts.plan_digest,
            history_digest=facts.history_digest,
            report_digest=facts.report_digest,
        )
        for cell in facts.cells
    ]
