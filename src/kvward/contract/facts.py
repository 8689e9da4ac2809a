"""A contract taken apart into single facts, each with a width that can be compared.

Elements of a set are facts of their own: present or absent. So adding a tolerated channel is one
fact more, and swapping one for another is one fact more and one less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvward.contract.model import (
    BindingClause,
    Clause,
    Coverage,
    ErasureClause,
    EvidenceClause,
    FailureClause,
    InterferenceClause,
    IsolationContract,
    LifetimeClause,
    MetadataClause,
    OnBadState,
    OnLoss,
    OriginClause,
    Route,
    ScopeClause,
    ScopeSetter,
    SecrecyClause,
    TieredClause,
    UntrustedClause,
    coverage,
)
from kvward.terms import CacheTier, ClauseId

Key = tuple[ClauseId | None, str]
_PROMISED = "promised"
_COVERAGE = {Coverage.ENFORCED: 1, Coverage.TESTED: 2, Coverage.NOT_COVERED: 3}


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One fact.

    Attributes:
        text: What is said, in a word or two.
        width: More is wider. None where nothing can be told from a difference.
        absent: The width of saying nothing of it; None where nothing can be told from that.
    """

    text: str
    width: float | None
    absent: float | None = None


def facts(contract: IsolationContract, *, beside: IsolationContract) -> dict[Key, Fact]:
    """Return the facts of a contract by clause and name.

    Args:
        beside: The contract it is compared with: routes and tiers that either names are facts of
            both.
    """
    return dict(_all(contract, beside))


def _all(contract: IsolationContract, beside: IsolationContract) -> Iterator[tuple[Key, Fact]]:
    yield (None, "deployment"), Fact(text=contract.deployment, width=None)
    yield (
        (None, "valid until"),
        Fact(text=contract.valid_until.isoformat(), width=-contract.valid_until.toordinal()),
    )
    for lapse in contract.exceptions:
        yield (
            (lapse.clause, f"exception: {lapse.what}"),
            Fact(text=f"until {lapse.until}", width=lapse.until.toordinal(), absent=0),
        )
    for clause in ClauseId:
        part, other = contract.clauses.of(clause), beside.clauses.of(clause)
        if part is None:
            if other is not None:
                yield (clause, _PROMISED), Fact(text="no", width=1)
            continue
        yield (clause, _PROMISED), Fact(text="yes", width=0, absent=1)
        if other is None:
            continue  # The clause as a whole came or went; its parts add nothing.
        if not isinstance(part, EvidenceClause):
            for tier in sorted({*contract.tiers, *beside.tiers}):
                yield (clause, f"tier {tier}"), _coverage(contract, part, tier)
        for name, fact in _of(part, other):
            yield (clause, name), fact


def _coverage(contract: IsolationContract, part: TieredClause, tier: CacheTier) -> Fact:
    if tier not in contract.tiers:
        return Fact(text="keeps no state", width=_COVERAGE[Coverage.ENFORCED])
    covered = coverage(part, tier)
    return Fact(text=covered, width=_COVERAGE[covered])


Facts = Iterator[tuple[str, Fact]]


def _of(part: Clause, other: Clause) -> Facts:
    match part, other:
        case ScopeClause(), ScopeClause():
            yield from _scope(part, other)
        case OriginClause(), _:
            yield "set by", Fact(text=part.set_by, width=int(part.set_by is ScopeSetter.CALLER))
            yield from _members("known by", part.identity, wider=True)
        case BindingClause(), _:
            yield from _members("bound to", part.dimensions, wider=False)
        case UntrustedClause(), _:
            served = part.on_bad_state is OnBadState.SERVE
            yield "bad state", Fact(text=part.on_bad_state, width=int(served))
        case SecrecyClause(), _:
            yield "encrypted", _yes(part.encrypted)
            yield "names keyed", _yes(part.names_keyed)
        case LifetimeClause(), _:
            yield "greatest age", Fact(text=f"{part.max_age_s:,} s", width=part.max_age_s)
        case ErasureClause(), _:
            yield from _members("erasure of a", part.of, wider=False)
            yield "within", Fact(text=f"{part.within_s:,} s", width=part.within_s)
            yield "receipt", _yes(part.receipt)
        case MetadataClause(), _:
            yield from _members("visible:", part.visible, wider=True)
            channels = tuple(one.channel for one in part.tolerated)
            yield from _members("tolerated:", channels, wider=True)
        case InterferenceClause(), _:
            share = part.protected_share or 0
            yield "protected share", Fact(text=f"{share:g}", width=-share)
        case FailureClause(), _:
            shared = part.on_loss is OnLoss.SHARE
            yield "loss", Fact(text=part.on_loss, width=int(shared))
        case EvidenceClause(), _:
            yield "every", Fact(text=f"{part.every_days} days", width=part.every_days)
            yield "rate at most", Fact(text=f"{part.rate_at_most:g}", width=part.rate_at_most)
            yield "confidence", Fact(text=f"{part.confidence:g}", width=-part.confidence)
            yield "ledger", _yes(part.ledger)


def _members(what: str, values: tuple[str, ...], *, wider: bool) -> Facts:
    """Members of a set; `wider` says whether one more is wider."""
    for value in values:
        yield f"{what} {value}", Fact(text="yes", width=int(wider), absent=int(not wider))


def _scope(part: ScopeClause, other: ScopeClause) -> Facts:
    yield from _members("in the key:", part.dimensions, wider=False)
    named = (*part.routes, *other.routes)
    for route in sorted({one.route for one in named}):
        for model in sorted({one.model for one in named}):
            found = level_of(part.routes, route, model)
            of = f"{route} for {model}"
            if found is None:
                yield f"level of {of}", Fact(text="not served", width=-1)
                yield f"leading level of {of}", Fact(text="not served", width=-1)
                continue
            leading = found.leading_level or found.level
            yield f"level of {of}", Fact(text=found.level.value, width=found.level.width)
            yield f"leading level of {of}", Fact(text=leading.value, width=leading.width)
    yield from _members("public prefix", tuple(one.digest for one in part.public), wider=True)


def level_of(routes: tuple[Route, ...], route: str, model: str) -> Route | None:
    """Return the entry that holds for a route and model: the exact one, then the route's, then the
    model's, then that of any other; None if there is none."""
    table = {(one.route, one.model): one for one in routes}
    places = ((route, model), (route, "*"), ("*", model), ("*", "*"))
    return next((table[place] for place in places if place in table), None)


def _yes(value: bool) -> Fact:
    return Fact(text="yes" if value else "no", width=int(not value))
