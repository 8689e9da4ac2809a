"""Say in a few lines what a policy decides, for whoever starts or checks a gateway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvward.gateway.policy import Policy
from kvward.keeping import RegisteredPrefix


def summarise_policy(
    policy: Policy, prefixes: Sequence[RegisteredPrefix]
) -> Iterator[tuple[str, str]]:
    """Yield pairs of a word and what it is set to. Without secrets."""
    yield "deployment", policy.deployment
    yield "tenants", _names([holder.name for holder in policy.tenants])
    yield "operators", _names([holder.name for holder in policy.operators])
    levels = {name: getattr(policy.levels, name) for name in policy.levels.__struct_fields__}
    yield "levels", ", ".join(f"{name} {level.value}" for name, level in levels.items() if level)
    yield "routes off", _names([name for name, level in levels.items() if level is None])
    system = policy.spans.system
    yield "system messages", system.value if system else "not shared wider than the rest"
    yield (
        "public prefixes",
        _names([f"{prefix.name} ({len(prefix.token_ids)} tokens)" for prefix in prefixes]),
    )
    yield (
        "keys",
        "derived from the root key; none can be rotated or erased"
        if policy.keyring is None
        else f"kept in {policy.keyring.database}",
    )
    yield "contract", policy.contract or "none"
    yield "state outside engines", "none" if policy.store is None else policy.store.shown_location


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
