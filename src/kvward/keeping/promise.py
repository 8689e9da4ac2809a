"""The isolation contract held against what is really set: what cannot be honoured is named.

Gateway and adapters read one contract, each checks the clauses that it has a hand in, and neither
starts while one of them is broken. Nothing here changes a setting: a contract never widens one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from kvward.contract import IsolationContract, read_contract
from kvward.contract.model import (
    Clauses,
    Coverage,
    Dimension,
    EvidenceClause,
    OnBadState,
    OnLoss,
)
from kvward.errors import ConfigError
from kvward.keeping.backends import resolve_location
from kvward.keeping.opening import Kept, Settings
from kvward.keeping.public import RegisteredPrefix
from kvward.keeping.sections import KeptSettings, StorePolicy
from kvward.scope.spans import digest_tokens
from kvward.terms import CacheTier, ClauseId

_STORE_TIERS = {
    "memory": CacheTier.HOST,
    "file": CacheTier.DISK,
    "valkey": CacheTier.REMOTE,
    "valkeys": CacheTier.REMOTE,
    "valkey-cluster": CacheTier.REMOTE,
    "valkeys-cluster": CacheTier.REMOTE,
    "s3": CacheTier.REMOTE,
}
# Of the engine's own memory we decide the names of entries, and nothing else.
_NOT_ON_DEVICE = {
    ClauseId.UNTRUSTED: "the engine reads its own memory without asking",
    ClauseId.SECRECY: "it is not encrypted there",
    ClauseId.LIFETIME: "entries have no age there",
    ClauseId.INTERFERENCE: "nobody has a share of it",
}


@dataclass(frozen=True, kw_only=True)
class Unkept:
    """A promise that the settings cannot honour.

    Attributes:
        clause: None where it is the contract as a whole.
        message: What is promised and what is so; a sentence.
        mend: What to change.
    """

    clause: ClauseId | None
    message: str
    mend: str


def honour_contract(
    kept: Kept[Settings], find: Callable[[IsolationContract], Iterable[Unkept]]
) -> tuple[str, ...]:
    """Read the contract that a policy names, and refuse to go on if it cannot be honoured.

    Args:
        find: Yields what cannot.
    Returns:
        What whoever starts this should know; nothing without a contract.
    Raises:
        ConfigError: It cannot be read, or not be honoured.
    """
    contract = load_contract(kept)
    if contract is None:
        return ()
    return refuse_unkept(contract, find(contract), today=datetime.now(UTC).date())


def load_contract(kept: Kept[Settings]) -> IsolationContract | None:
    """Read the contract that a policy names; None where it names none.

    Raises:
        ContractError: It cannot be read, or is none.
    """
    name = kept.settings.contract
    return None if name is None else read_contract(kept.folder / name)


def find_unkept(
    contract: IsolationContract, settings: KeptSettings, prefixes: Sequence[RegisteredPrefix]
) -> Iterator[Unkept]:
    """Yield the promises about keys, store and public prefixes that cannot be honoured."""
    if contract.deployment != settings.deployment:
        yield Unkept(
            clause=None,
            message=f"It is the contract of {contract.deployment}, and this is "
            f"{settings.deployment}.",
            mend="Name the contract of this deployment, or the deployment as it is in the policy.",
        )
    yield from _tiers(contract, settings.store)
    yield from _public(contract.clauses, prefixes)
    yield from _kept(contract.clauses, settings)


def refuse_unkept(
    contract: IsolationContract, unkept: Iterable[Unkept], *, today: date
) -> tuple[str, ...]:
    """Refuse to go on if a promise is broken that is in force.

    Args:
        today: In UTC. Until its last day an exception of the contract lifts its clause.
    Returns:
        What whoever starts this should know: exceptions in force that matter, a contract's end.
    Raises:
        ConfigError: At least one cannot be honoured; all are named.
    """
    lifted = {lapse.clause: lapse.until for lapse in contract.exceptions if lapse.until >= today}
    broken, notes = [], []
    for one in unkept:
        if one.clause in lifted:
            notes.append(f"{one.clause} is not kept, excepted until {lifted[one.clause]}.")
        else:
            broken.append(one)
    if broken:
        order = [None, *ClauseId]
        broken.sort(key=lambda one: order.index(one.clause))
        listed = "".join(f"\n  {one.clause or 'contract'}: {one.message}" for one in broken)
        raise ConfigError(
            f"The contract {contract.deployment}, version {contract.version}, cannot be honoured "
            f"with these settings:{listed}",
            hint=" ".join(dict.fromkeys(one.mend for one in broken)),
        )
    if contract.valid_until < today:
        notes.append(f"The contract ended on {contract.valid_until}; nobody is promised anything.")
    return tuple(notes)


def store_tier(section: StorePolicy) -> CacheTier | None:
    """Return the tier that a store is; None if its location is not understood."""
    return _STORE_TIERS.get(resolve_location(section).scheme)


def _tiers(contract: IsolationContract, store: StorePolicy | None) -> Iterator[Unkept]:
    mine = None if store is None else store_tier(store)
    if mine is not None and mine not in contract.tiers:
        yield Unkept(
            clause=None,
            message=f"State is kept in the {mine} tier, of which it says nothing.",
            mend=f'Add "{mine}" to the contract\'s tiers, and say what is covered there.',
        )
    for clause in ClauseId:
        part = contract.clauses.of(clause)
        if part is None or isinstance(part, EvidenceClause):
            continue
        enforced = [tier for tier, how in part.tiers.items() if how is Coverage.ENFORCED]
        for tier in enforced:
            why = None
            if tier is CacheTier.DEVICE:
                why = _NOT_ON_DEVICE.get(clause)
            elif tier is not mine:
                why = "this policy keeps nothing there"
            if why is not None:
                yield Unkept(
                    clause=clause,
                    message=f"It is said to be enforced in the {tier} tier, and {why}.",
                    mend=f'Write {tier} = "{Coverage.TESTED}" or "{Coverage.NOT_COVERED}" there.',
                )


def _public(clauses: Clauses, prefixes: Sequence[RegisteredPrefix]) -> Iterator[Unkept]:
    promised = set() if clauses.scope is None else {one.digest for one in clauses.scope.public}
    for prefix in prefixes:
        digest = prefix_digest(prefix)
        if digest not in promised:
            yield Unkept(
                clause=ClauseId.SCOPE,
                message=f"The prefix {prefix.name} is shared by everybody, and not listed.",
                mend=f'List it under [[clauses.scope.public]] with digest = "{digest}".',
            )


def prefix_digest(prefix: RegisteredPrefix) -> str:
    """Return the digest by which a contract names a public prefix."""
    return f"sha256:{digest_tokens(prefix.token_ids).hex()}"


def _kept(clauses: Clauses, settings: KeptSettings) -> Iterator[Unkept]:
    keyring, store = settings.keyring, settings.store
    untrusted, failure = clauses.untrusted, clauses.failure
    if untrusted is not None and untrusted.on_bad_state is OnBadState.REFUSE:
        yield Unkept(
            clause=ClauseId.UNTRUSTED,
            message="Bad state is promised to be refused, and here it is computed again.",
            mend=f'Write on_bad_state = "{OnBadState.RECOMPUTE}".',
        )
    if failure is not None and failure.on_loss is OnLoss.REFUSE:
        yield Unkept(
            clause=ClauseId.FAILURE,
            message="Requests are promised to be refused when something is lost, and here they "
            "are computed again.",
            mend=f'Write on_loss = "{OnLoss.RECOMPUTE}".',
        )
    lifetime = clauses.lifetime
    if lifetime is not None and keyring is not None and keyring.max_age_s > lifetime.max_age_s:
        yield Unkept(
            clause=ClauseId.LIFETIME,
            message=f"State is promised to end after {lifetime.max_age_s:,} s, and here it is "
            f"kept for {keyring.max_age_s:,} s.",
            mend="Lower max_age_s under [keyring].",
        )
    yield from _erasure(clauses, settings)
    binding = clauses.binding
    if (
        binding is not None
        and Dimension.ENGINE_BUILD in binding.dimensions
        and store is not None
        and store.equivalences is not None
    ):
        yield Unkept(
            clause=ClauseId.BINDING,
            message="State is promised to be bound to the engine's build, and a list lets it be "
            "read by another one.",
            mend="Take equivalences out of [store], or engine-build out of dimensions.",
        )
    interference = clauses.interference
    if interference is not None and interference.protected_share and store is not None:
        share = store.share_bytes / store.capacity_bytes if store.capacity_bytes > 0 else 0.0
        if share < interference.protected_share:
            yield Unkept(
                clause=ClauseId.INTERFERENCE,
                message=f"A share of {interference.protected_share:g} is promised, and "
                f"share_bytes is {share:.3g} of capacity_bytes.",
                mend="Raise share_bytes under [store].",
            )


def _erasure(clauses: Clauses, settings: KeptSettings) -> Iterator[Unkept]:
    erasure, scope, keyring = clauses.erasure, clauses.scope, settings.keyring
    enforced = erasure is not None and Coverage.ENFORCED in erasure.tiers.values()
    if keyring is None:
        named = [ClauseId.ERASURE] if enforced else []
        if scope is not None and Dimension.EPOCH in scope.dimensions:
            named.append(ClauseId.SCOPE)
        for clause in named:
            yield Unkept(
                clause=clause,
                message="Without a keyring there are no epochs, and nothing can be erased.",
                mend="Add a [keyring] section to the policy.",
            )
        return
    within_s = keyring.cache_s + keyring.request_s
    if erasure is not None and enforced and within_s > erasure.within_s:
        yield Unkept(
            clause=ClauseId.ERASURE,
            message=f"What is erased is promised to be gone within {erasure.within_s:,} s, and "
            f"here it is after {within_s:,} s.",
            mend="Lower cache_s or request_s under [keyring].",
        )
