"""The isolation contract held against the gateway's own settings: levels, identity, what shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvward.contract import IsolationContract
from kvward.contract.facts import level_of
from kvward.contract.model import Coverage, Identity, Route, ScopeClause, Visible, coverage
from kvward.gateway.policy import Policy
from kvward.keeping import Kept, RegisteredPrefix, Unkept, find_unkept, honour_contract
from kvward.terms import CacheTier, ClauseId, SharingLevel


def honour_policy_contract(
    kept: Kept[Policy], prefixes: Sequence[RegisteredPrefix]
) -> tuple[str, ...]:
    """Refuse to serve with a policy that breaks the contract it names.

    Returns:
        What whoever starts the gateway should know.
    Raises:
        ConfigError: The contract cannot be read, or not be honoured; every clause is named.
    """
    return honour_contract(
        kept, lambda contract: find_unkept_here(contract, kept.settings, prefixes)
    )


def find_unkept_here(
    contract: IsolationContract, policy: Policy, prefixes: Sequence[RegisteredPrefix]
) -> Iterator[Unkept]:
    """Yield every promise that a gateway with this policy cannot honour.

    What adapters inside an engine have a hand in, they check themselves.
    """
    yield from find_unkept(contract, policy, prefixes)
    clauses = contract.clauses
    if clauses.scope is not None:
        yield from _levels(clauses.scope, policy)
    if clauses.origin is not None and Identity.API_KEY not in clauses.origin.identity:
        yield Unkept(
            clause=ClauseId.ORIGIN,
            message=f"Callers are promised to be known by {', '.join(clauses.origin.identity)}, "
            "and here they are by an API key.",
            mend=f'Add "{Identity.API_KEY}" to identity.',
        )
    if clauses.metadata is not None and Visible.OWN_USAGE not in clauses.metadata.visible:
        yield Unkept(
            clause=ClauseId.METADATA,
            message="Usage counters are not said to be visible, and engines' answers have them.",
            mend=f'Add "{Visible.OWN_USAGE}" to visible.',
        )
    binding = clauses.binding
    if (
        binding is not None
        and coverage(binding, CacheTier.DEVICE) is Coverage.ENFORCED
        and policy.engine.allow_reload
    ):
        yield Unkept(
            clause=ClauseId.BINDING,
            message="Weights may be changed under a running engine, whose blocks stay valid.",
            mend="Take allow_reload out of [engine], or do not promise it in the device tier.",
        )


def _levels(scope: ScopeClause, policy: Policy) -> Iterator[Unkept]:
    models = sorted({one.model for one in scope.routes} | {"*"})
    for route in policy.levels.__struct_fields__:
        level: SharingLevel | None = getattr(policy.levels, route)
        if level is None:
            continue
        for model in models:
            promised = level_of(scope.routes, route, model)
            # A model of its own name only needs a row where it has one.
            if promised is not None or model == "*":
                yield from _level(route, level, promised, policy.spans.system)


def _level(
    route: str, level: SharingLevel, promised: Route | None, system: SharingLevel | None
) -> Iterator[Unkept]:
    if promised is None:
        yield Unkept(
            clause=ClauseId.SCOPE,
            message=f"{route} is served, and nothing is promised of it.",
            mend=f"Add a route {route} for the model * to the contract, or take its level out of "
            "[levels].",
        )
        return
    where = f"{route} for {promised.model}"
    if level.width > promised.level.width:
        yield Unkept(
            clause=ClauseId.SCOPE,
            message=f"{where} is promised to be shared by {promised.level.value}, and here it is "
            f"by {level.value}.",
            mend=f"Narrow {route} under [levels].",
        )
    leading = promised.leading_level or promised.level
    # A span is put in front of chats only, and never narrows what the route is shared by.
    if route == "chat_completions" and system is not None and system.width > leading.width:
        yield Unkept(
            clause=ClauseId.SCOPE,
            message=f"System messages of {where} are promised to be shared by {leading.value}, "
            f"and here they are by {system.value}.",
            mend="Narrow system under [spans], or say so in leading_level.",
        )
