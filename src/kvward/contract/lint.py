"""What is wrong with a contract that is well-formed: contradictions, gaps and things worth knowing.

An error is something that cannot be meant or kept; a warning is something that a reader of the
promise should not have to find out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from kvward.contract.model import (
    NEVER_TOLERATED,
    Coverage,
    Dimension,
    EvidenceClause,
    IsolationContract,
    OnBadState,
    OnLoss,
    Route,
    ScopeClause,
    ScopeSetter,
    Visible,
)
from kvward.terms import CacheTier, ClauseId, SharingLevel

_MAX_EXCEPTION_DAYS = 366
_NEEDS = {
    SharingLevel.CONVERSATION: (Dimension.TENANT, Dimension.CONVERSATION),
    SharingLevel.USER: (Dimension.TENANT, Dimension.USER),
    SharingLevel.TENANT: (Dimension.TENANT,),
}
_EXACT = (Dimension.WEIGHTS, Dimension.ADAPTER, Dimension.TOKENS, Dimension.PARENT)


class Severity(StrEnum):
    """Whether a remark makes the contract one that cannot be published."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One remark: what, about which clause (None: the document), and what mends it."""

    severity: Severity
    clause: ClauseId | None
    message: str
    mend: str


def lint(contract: IsolationContract, *, today: date) -> list[Remark]:
    """Return remarks, errors first."""
    found = [
        *_document(contract, today),
        *_coverage(contract),
        *_scope(contract),
        *_clauses(contract),
    ]
    return sorted(found, key=lambda remark: remark.severity is Severity.WARNING)


def _error(clause: ClauseId | None, message: str, mend: str) -> Remark:
    return Remark(severity=Severity.ERROR, clause=clause, message=message, mend=mend)


def _warning(clause: ClauseId | None, message: str, mend: str) -> Remark:
    return Remark(severity=Severity.WARNING, clause=clause, message=message, mend=mend)


def _document(contract: IsolationContract, today: date) -> Iterator[Remark]:
    if contract.valid_until < contract.published:
        yield _error(None, "It ends before it is published.", "Set valid_until after published.")
    elif contract.valid_until < today:
        ended = contract.valid_until
        yield _error(None, f"It ended on {ended}.", "Publish a new version with a later end.")
    if not contract.tiers:
        yield _error(None, "It names no tier.", "List every tier that keeps state in tiers.")
    for lapse in contract.exceptions:
        if lapse.until < today:
            message = f"The exception {lapse.what!r} ended on {lapse.until}."
            yield _error(lapse.clause, message, "Remove it, or say until when it goes on.")
        elif (lapse.until - today).days > _MAX_EXCEPTION_DAYS:
            message = f"The exception {lapse.what!r} lasts longer than a year."
            yield _warning(lapse.clause, message, "Take it into the clause itself.")
        if contract.clauses.of(lapse.clause) is None:
            message = f"The exception {lapse.what!r} is from a clause that is not promised."
            yield _error(lapse.clause, message, "Promise the clause, or remove the exception.")
    for clause in ClauseId:
        if contract.clauses.of(clause) is None:
            message = f"Nothing is promised of {clause}."
            yield _warning(clause, message, "Add the clause, or let the reader be told so.")


def _coverage(contract: IsolationContract) -> Iterator[Remark]:
    for clause in ClauseId:
        part = contract.clauses.of(clause)
        if part is None or isinstance(part, EvidenceClause):
            continue
        for tier in contract.tiers:
            if tier not in part.tiers:
                message = f"It does not say how {clause} is kept in the {tier} tier."
                yield _error(clause, message, f'Write {tier} = "{Coverage.NOT_COVERED}" or better.')
        for tier in part.tiers:
            if tier not in contract.tiers:
                message = f"{clause} speaks of the {tier} tier, which is not among the tiers."
                yield _error(clause, message, "Add it to tiers, or leave it out here.")
        said = [part.tiers.get(tier) for tier in contract.tiers]
        if contract.tiers and all(one is Coverage.NOT_COVERED for one in said):
            message = f"{clause} is covered in no tier, so it promises nothing."
            yield _error(clause, message, "Leave the clause out: that says the same.")
    lifetime, interference = contract.clauses.lifetime, contract.clauses.interference
    for clause, part in ((ClauseId.LIFETIME, lifetime), (ClauseId.INTERFERENCE, interference)):
        if part is not None and part.tiers.get(CacheTier.DEVICE) is Coverage.ENFORCED:
            message = f"{clause} is said to be enforced in the engine's own memory."
            yield _warning(
                clause,
                message,
                "vLLM's prefix cache has neither ages nor shares; check yours.",
            )


def _scope(contract: IsolationContract) -> Iterator[Remark]:
    scope = contract.clauses.scope
    if scope is None:
        return
    if not scope.routes:
        yield _error(ClauseId.SCOPE, "It names no route.", "Add a route and its level.")
    for (route, model), count in Counter((one.route, one.model) for one in scope.routes).items():
        if count > 1:
            message = f"{route} for {model} stands {count} times."
            yield _error(ClauseId.SCOPE, message, "Keep one.")
    for one in scope.routes:
        yield from _route(one, scope)
    for digest, count in Counter(one.digest for one in scope.public).items():
        if count > 1:
            yield _error(ClauseId.SCOPE, f"The prefix {digest} stands twice.", "Keep one.")


def _route(one: Route, scope: ScopeClause) -> Iterator[Remark]:
    where = f"{one.route} for {one.model}"
    if one.level is SharingLevel.PUBLIC:
        message = f"{where} shares everything with everybody."
        yield _error(ClauseId.SCOPE, message, "Public is for registered prefixes only.")
        return
    leading = one.leading_level or one.level
    if leading.width < one.level.width:
        message = f"{where} has a leading span narrower than what follows it."
        yield _error(ClauseId.SCOPE, message, "Levels only narrow along a prompt.")
    if leading is SharingLevel.PUBLIC and not scope.public:
        message = f"{where} has a public leading span, and no public prefix is named."
        yield _error(ClauseId.SCOPE, message, "Name the prefixes by digest.")
    for dimension in _NEEDS.get(one.level, ()):
        if dimension not in scope.dimensions:
            message = f"{where} is shared by {one.level.value}, and the key has no {dimension}."
            yield _error(ClauseId.SCOPE, message, f'Add "{dimension}" to dimensions, if it is so.')


def _clauses(contract: IsolationContract) -> Iterator[Remark]:
    clauses = contract.clauses
    if clauses.origin is not None and clauses.origin.set_by is ScopeSetter.CALLER:
        message = "The caller chooses the scope, so it can join one that is not its own."
        yield _warning(ClauseId.ORIGIN, message, "Let the server decide.")
    if clauses.origin is not None and not clauses.origin.identity:
        message = "It does not say by what a caller is known."
        yield _error(ClauseId.ORIGIN, message, "Name at least one kind of identity.")
    if clauses.binding is not None:
        missing = [one for one in _EXACT if one not in clauses.binding.dimensions]
        if missing:
            message = f"State is not bound to its {', '.join(missing)}."
            yield _warning(ClauseId.BINDING, message, "Two models or places can share an entry.")
    if clauses.untrusted is not None and clauses.untrusted.on_bad_state is OnBadState.SERVE:
        message = "State that does not authenticate is served."
        yield _error(ClauseId.UNTRUSTED, message, "Recompute it, or leave the clause out.")
    if clauses.failure is not None and clauses.failure.on_loss is OnLoss.SHARE:
        message = "When a part fails, state is shared more widely."
        yield _error(ClauseId.FAILURE, message, "Recompute, or leave the clause out.")
    if clauses.erasure is not None and not clauses.erasure.of:
        yield _error(ClauseId.ERASURE, "It erases nothing.", "Name tenant or conversation in of.")
    if clauses.metadata is not None:
        for one in clauses.metadata.tolerated:
            if one.channel in NEVER_TOLERATED:
                message = f"It tolerates that others' state shows in {one.channel}."
                yield _error(ClauseId.METADATA, message, "What answers hold is never tolerated.")
        wide = [one for one in clauses.metadata.visible if one not in _OWN]
        if wide:
            message = f"Callers see what other scopes' state did: {', '.join(wide)}."
            yield _warning(ClauseId.METADATA, message, "Let the gateway take it out.")
    if clauses.evidence is None and any(clauses.of(one) for one in ClauseId):
        message = "Nothing says how often any of this is tested."
        yield _warning(ClauseId.EVIDENCE, message, "Add the evidence clause.")


_OWN = frozenset({Visible.OWN_USAGE, Visible.OWN_HEADERS})
