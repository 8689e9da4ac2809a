"""kvward's own audit, as `kvward audit URL --level tenant` runs it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from kvward.audit.plan import Tier
from kvward.cli.auditing import AuditRequest, run_audit
from kvward.cli.selftest.reading import read_report
from kvward.terms import Outcome, SharingLevel

from .answer import Answer, Says

_SAYS = {
    Outcome.VIOLATED: Says.FOUND,
    Outcome.INCONCLUSIVE: Says.INCONCLUSIVE,
    Outcome.NOT_OBSERVED: Says.NOTHING_FOUND,
}


def run(url: str, *, keys: tuple[str, str], seed: int, folder: Path) -> Answer:
    """Audit a server at the smallest of kvward's sizes."""
    request = AuditRequest(
        url=url,
        keys=dict(zip(("acorn", "birch"), keys, strict=True)),
        model=None,
        tier=Tier.SMOKE,
        seed=seed,
        channels=None,
        declared_level=SharingLevel.TENANT,
        clients=16,
        prompt_tokens=None,
    )
    began = time.monotonic()
    result = asyncio.run(run_audit(request, folder=folder))
    assert result is not None
    report, trials = result
    seconds = time.monotonic() - began
    seen = read_report(report, trials)
    strongest = next(o for o in Outcome if any(one.outcome is o for one in seen))
    return Answer(
        says=_SAYS[strongest],
        detail="; ".join(f"{one.channel} {one.outcome}" for one in seen),
        num_requests=len(trials),
        seconds=seconds,
    )
