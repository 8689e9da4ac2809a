"""Fix a plan: which cells it has, within which bounds, under which salts."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from kvward.audit.plan import (
    BLOCK_TOKENS,
    FORMAT_VERSION,
    LOAD_CHANNELS,
    MAX_FLOOD_TOKENS,
    MAX_LIFETIME_S,
    TIER_SIZES,
    Cell,
    Elicitation,
    Plan,
    Route,
    Sizes,
    Tier,
)
from kvward.errors import ConfigError
from kvward.terms import CacheTier, Channel, ProbeScope, SharingLevel

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_PAIR_SCOPES = (ProbeScope.S0, ProbeScope.S3, ProbeScope.S5)
"""Of every plan of pairs; what else there is depends on what the operator said."""


def planned_cells(
    channels: Sequence[Channel],
    *,
    declared_level: SharingLevel | None,
    pair_scopes: Collection[ProbeScope] = _PAIR_SCOPES,
    with_floods: bool = False,
    with_dialogues: bool = True,
) -> tuple[Cell, ...]:
    """Return the cells of an audit of the given channels.

    Content is never allowed to cross, at any level, nor to come back in its own conversation after
    it was given up there (S1). Reuse between two conversations of one
    tenant (S2) is a question of the declared level: unknown, it is not planned; `TENANT`, it is
    allowed; narrower, it is a violation. What a flood of others does to own state (S8) is a
    question of what the operator promises to keep.

    Args:
        pair_scopes: What pairs are run for, S2 and S8 left out.
    """
    cells = []
    for channel in Channel:
        if channel not in channels:
            continue
        if channel is Channel.CONTENT:
            scopes = [ProbeScope.S0, ProbeScope.S1, ProbeScope.S2, ProbeScope.S3]
            if not with_dialogues:
                scopes.remove(ProbeScope.S1)
        elif channel is Channel.DIFFERENTIAL:
            scopes = [ProbeScope.S0]  # what is wrong shows; whose it is does not
        else:
            narrow = declared_level in {SharingLevel.CONVERSATION, SharingLevel.REQUEST}
            wanted = {*pair_scopes, *([ProbeScope.S2] if narrow else [])}
            scopes = [scope for scope in ProbeScope if scope in wanted]
        for scope in scopes:
            control = channel not in LOAD_CHANNELS and scope is ProbeScope.S0
            cells.append(Cell(scope=scope, channel=channel, reuse_expected=control))
        if with_floods and channel is Channel.METADATA:
            cells.append(Cell(scope=ProbeScope.S8, channel=channel, reuse_expected=True))
    return tuple(cells)


def make_plan(
    *,
    url: str,
    model: str,
    tenants: Sequence[str],
    tier: Tier,
    seed: int,
    channels: Sequence[Channel],
    declared_level: SharingLevel | None,
    clients: int,
    prompt_tokens: int,
    sizes: Sizes | None = None,
    run_nonce: str = "",
    cache_tier: CacheTier = CacheTier.DEVICE,
    alpha: float = 1e-3,
    confidence: float = 0.95,
    routes: Sequence[Route] = (Route.COMPLETIONS,),
    replicas: Sequence[str] = (),
    preset: str = "",
    preset_reason: str = "",
    counter_hint: str = "",
    streamed: bool = True,
    other_model: str = "",
    reloads: bool = False,
    erases: bool = False,
    lifetime_s: float = 0.0,
    elicitation: Elicitation = Elicitation.LOGPROBS,
    salted: bool = False,
    pictures: bool = False,
    doors: Sequence[str] = (),
    saves_state: bool = False,
    protected_tokens: int | None = None,
    protected_words: int = 0,
    flood_tokens: int = 0,
) -> Plan:
    """Fix a plan.

    Args:
        erases: Whether the operator can have a conversation erased.
        lifetime_s: After how many seconds the stack promises to reuse nothing; 0 for no promise.
        salted: Whether the auditor sends a salt of its own for each tenant.
        pictures: Whether the target's model takes pictures.

    Raises:
        ConfigError: fewer than two tenants, tenants of one name, no channel, or a number out
            of its range.
    """
    if len(tenants) < 2:
        raise ConfigError(
            "An audit needs two tenants: one whose state could leak and one who could read it.",
            hint="Give --tenant NAME=KEY twice, with keys of two different tenants.",
        )
    if len(set(tenants)) != len(tenants):
        raise ConfigError("Two tenants have the same name.", hint="Name them differently.")
    if not routes or len(set(routes)) != len(routes):
        raise ConfigError("A plan has at least one route, and each of them once.")
    if not channels:
        raise ConfigError("No channel is chosen.", hint="Leave --channel out to read all.")
    if cache_tier is not CacheTier.DEVICE and LOAD_CHANNELS.intersection(channels):
        raise ConfigError(
            "Content is read under load from the device tier only.",
            hint="Leave content and differential out of an audit behind a flush.",
        )
    if not 1 <= clients <= 256:
        raise ConfigError("The number of clients lies between 1 and 256.")
    if not 4 * BLOCK_TOKENS <= prompt_tokens <= 100_000:
        raise ConfigError(f"Prompts have between {4 * BLOCK_TOKENS} and 100000 tokens.")
    if other_model and other_model == model:
        raise ConfigError("The other model is the same.", hint="Name another with --other-model.")
    if not 0 <= lifetime_s <= MAX_LIFETIME_S:
        raise ConfigError(f"A lifetime that is waited for has up to {MAX_LIFETIME_S} seconds.")
    if not 0 <= seed < 2**63:
        raise ConfigError("A seed lies between 0 and 2^63 - 1.")
    with_floods = protected_tokens is not None and cache_tier is CacheTier.DEVICE
    if with_floods and not (
        4 * BLOCK_TOKENS <= protected_words <= prompt_tokens
        and 1 <= flood_tokens <= MAX_FLOOD_TOKENS
    ):
        raise ConfigError(
            f"A flood has up to {MAX_FLOOD_TOKENS} tokens, and what it may not reach at least "
            f"{4 * BLOCK_TOKENS} words, and no more than other prompts."
        )
    return Plan(
        url=url,
        model=model,
        route=routes[0],
        tenants=tuple(tenants),
        tier=tier,
        seed=seed,
        alpha=alpha,
        confidence=confidence,
        clients=clients,
        prompt_tokens=prompt_tokens,
        sizes=TIER_SIZES[tier] if sizes is None else sizes,
        run_nonce=run_nonce,
        cache_tier=cache_tier,
        cells=planned_cells(
            channels,
            declared_level=declared_level,
            with_floods=with_floods,
            with_dialogues=elicitation is Elicitation.LOGPROBS,
            pair_scopes={
                ProbeScope.S0,
                ProbeScope.S3,
                *([ProbeScope.S4] if other_model or reloads else []),
                *([] if salted else [ProbeScope.S5]),
                *([ProbeScope.S6] if erases or lifetime_s else []),
                *([ProbeScope.S7] if pictures else []),
            },
        ),
        format_version=FORMAT_VERSION,
        routes=tuple(routes),
        replicas=tuple(replicas),
        preset=preset,
        preset_reason=preset_reason,
        counter_hint=counter_hint,
        streamed=streamed,
        other_model=other_model,
        reloads=reloads,
        erases=erases,
        lifetime_s=lifetime_s,
        elicitation=elicitation,
        salts=make_salts(tenants, run_nonce, other_model) if salted else {},
        doors=tuple(doors),
        # Behind a flush a state that was saved before it would prove nothing about a tier.
        saves_state=saves_state and cache_tier is CacheTier.DEVICE,
        protected_tokens=protected_tokens if with_floods else None,
        protected_words=protected_words if with_floods else 0,
        flood_tokens=flood_tokens if with_floods else 0,
    )


def make_salts(tenants: Sequence[str], run_nonce: str, other_model: str) -> dict[str, str]:
    """Return a salt for each tenant: each one is the one before it and the other model's name.

    Whoever joins salt and model without a border between them takes the first tenant's request
    for that model for the second tenant's request for none.
    """
    name = other_model if _PLAIN_NAME.fullmatch(other_model) else "t"
    return {tenant: f"kv{run_nonce}{name * number}" for number, tenant in enumerate(tenants)}
