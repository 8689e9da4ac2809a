"""A contract beside evidence: each clause shown, contradicted, stale or not tested, by tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from kvward.contract.model import (
    NEVER_TOLERATED,
    Coverage,
    EvidenceClause,
    IsolationContract,
    coverage,
)
from kvward.contract.refute import UNTESTED, clauses_of
from kvward.errors import ContractError
from kvward.terms import CacheTier, Channel, ClauseId, Outcome, VerdictRecord


class Standing(StrEnum):
    """How a clause stands, from worst to best."""

    CONTRADICTED = "contradicted"
    NOT_TESTED = "not tested"
    STALE = "stale"
    SHOWN = "shown"


@dataclass(frozen=True, kw_only=True)
class ClauseCheck:
    """How one clause stands in one tier.

    Attributes:
        tier: None for the evidence clause.
        until: The last day on which the evidence counts, where it is shown or stale.
        bound: The largest bound of its cells, of answers or counts; None where none is.
        within: Whether that bound is as small as the contract says it has to be.
        reasons: One for each cell that decided, or why nothing did.
        sources: Digests of the histories.
    """

    clause: ClauseId
    tier: CacheTier | None
    standing: Standing
    until: date | None = None
    bound: float | None = None
    within: bool | None = None
    reasons: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def check(
    contract: IsolationContract, records: Sequence[VerdictRecord], *, today: date
) -> list[ClauseCheck]:
    """Compare what is promised with what was shown.

    Only the latest verdict of a cell counts; of several on one day, the worst. An inconclusive one
    tells nothing: it neither clears an earlier violation nor shows anything, and a clause with a
    cell that nothing else answered is not tested. One old cell makes a clause stale. A clause that
    is not promised, or not in a tier, has no row. Exceptions excuse nothing here: a contradicted
    clause is one.

    Raises:
        ContractError: the contract does not say how long evidence counts.
    """
    evidence = contract.clauses.evidence
    if evidence is None:
        raise ContractError(
            "The contract does not say how long a test counts.", hint="Add the evidence clause."
        )
    latest = _latest(records)
    rows = []
    for clause in ClauseId:
        part = contract.clauses.of(clause)
        if part is None or isinstance(part, EvidenceClause):
            continue
        for tier in contract.tiers:
            if coverage(part, tier) is not Coverage.NOT_COVERED:
                own = [one for one in latest if one.tier is tier and clause in clauses_of(one)]
                own = [one for one in own if not _tolerated(contract, one)]
                rows.append(_stand(clause, tier, own, evidence, today))
    rows.append(_cadence(rows, evidence))
    return rows


def _latest(records: Sequence[VerdictRecord]) -> list[VerdictRecord]:
    """Return one record for each cell; later ones in the sorting replace earlier ones."""
    violated, unclear = Outcome.VIOLATED, Outcome.INCONCLUSIVE
    ranked = sorted(
        records, key=lambda one: (one.outcome is not unclear, one.day, one.outcome is violated)
    )
    return [*{(one.channel, one.scope, one.tier, one.endings): one for one in ranked}.values()]


def _tolerated(contract: IsolationContract, record: VerdictRecord) -> bool:
    metadata = contract.clauses.metadata
    if metadata is None or record.channel in NEVER_TOLERATED:
        return False
    return any(one.channel is record.channel for one in metadata.tolerated)


def _stand(
    clause: ClauseId,
    tier: CacheTier,
    records: Sequence[VerdictRecord],
    evidence: EvidenceClause,
    today: date,
) -> ClauseCheck:
    violated = [one for one in records if one.outcome is Outcome.VIOLATED]
    quiet = [one for one in records if one.outcome is Outcome.NOT_OBSERVED]
    lasts = timedelta(days=evidence.every_days)
    is_fresh = all(one.day <= today <= one.day + lasts for one in quiet)
    if violated:
        return _row(clause, tier, Standing.CONTRADICTED, violated)
    unclear = tuple(_cell(one) for one in records if one.outcome is Outcome.INCONCLUSIVE)
    if unclear or not quiet:
        why = UNTESTED.get(clause, "no audit looked at it here")
        return ClauseCheck(
            clause=clause, tier=tier, standing=Standing.NOT_TESTED, reasons=unclear or (why,)
        )
    bounds = [one.bound for one in quiet if one.channel is not Channel.TIMING]
    known = [bound for bound in bounds if bound is not None]
    sure = all(one.confidence >= evidence.confidence for one in quiet)
    bound = max(known) if known else None
    return _row(
        clause,
        tier,
        Standing.SHOWN if is_fresh else Standing.STALE,
        quiet,
        until=min(one.day for one in quiet) + lasts,
        bound=bound,
        within=bound is not None and sure and bound <= evidence.rate_at_most,
    )


def _row(
    clause: ClauseId,
    tier: CacheTier,
    standing: Standing,
    records: Sequence[VerdictRecord],
    *,
    until: date | None = None,
    bound: float | None = None,
    within: bool | None = None,
) -> ClauseCheck:
    return ClauseCheck(
        clause=clause,
        tier=tier,
        standing=standing,
        until=until,
        bound=bound,
        within=within,
        reasons=tuple(_cell(one) for one in records),
        sources=tuple(dict.fromkeys(one.source for one in records)),
    )


def _cell(record: VerdictRecord) -> str:
    return f"{record.channel} {record.scope} ({record.scope.meaning}): {record.reason}"


def _cadence(rows: Sequence[ClauseCheck], evidence: EvidenceClause) -> ClauseCheck:
    """How the promise to test stands: as the oldest of what an audit from outside can test."""
    tested = [row for row in rows if row.clause not in UNTESTED]
    standing = _worst(tested)
    days = [row.until for row in tested if row.until is not None]
    return ClauseCheck(
        clause=ClauseId.EVIDENCE,
        tier=None,
        standing=standing,
        until=min(days) if days and standing is not Standing.NOT_TESTED else None,
        reasons=tuple(_late(tested, evidence)),
    )


def _worst(rows: Sequence[ClauseCheck]) -> Standing:
    """Return how far the tests go; a clause that they contradict has been tested."""
    standings = {row.standing for row in rows} - {Standing.CONTRADICTED}
    order = (Standing.NOT_TESTED, Standing.STALE, Standing.SHOWN)
    return next((one for one in order if one in standings), Standing.SHOWN if rows else order[0])


def _late(rows: Sequence[ClauseCheck], evidence: EvidenceClause) -> Iterator[str]:
    for row in rows:
        if row.standing in {Standing.STALE, Standing.NOT_TESTED}:
            yield f"{row.clause} in the {row.tier} tier: {row.standing}"
        elif row.within is False:
            most = evidence.rate_at_most
            yield f"{row.clause} in the {row.tier} tier: not bounded by {most:g}"
