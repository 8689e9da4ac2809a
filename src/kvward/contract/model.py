"""The isolation contract, version 1: what a deployment promises about its cache, as data.

A contract states facts and never decides anything: the gateway and the adapters enforce, the
auditor tests. Nothing has a default that widens; what is left out is not promised.

Source: DESIGN.md sections 2 and 10.
"""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated

import msgspec

from kvward.terms import CacheTier, Channel, ClauseId, SharingLevel

FORMAT = "kvward contract 1"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}\Z")]
Pattern = Annotated[str, msgspec.Meta(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127})\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Sentence = Annotated[str, msgspec.Meta(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f]+\Z")]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=10 * 366 * 86_400)]
Days = Annotated[int, msgspec.Meta(ge=1, le=3_660)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Coverage(StrEnum):
    """How a clause is kept in one tier, from most to least."""

    ENFORCED = "enforced"
    TESTED = "tested-only"
    NOT_COVERED = "not-covered"


class Dimension(StrEnum):
    """What two requests must have in common before they can name the same cached entry."""

    DEPLOYMENT = "deployment"
    TENANT = "tenant"
    USER = "user"
    CONVERSATION = "conversation"
    EPOCH = "epoch"
    WEIGHTS = "weights"
    ADAPTER = "adapter"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    DTYPE = "dtype"
    KV_DTYPE = "kv-dtype"
    LAYOUT = "layout"
    ENGINE_BUILD = "engine-build"
    PARALLEL_SHAPE = "parallel-shape"
    TOKENS = "tokens"
    PARENT = "parent"
    POSITION = "position"
    MEDIA = "media"


class ScopeSetter(StrEnum):
    """Who decides under which scope an entry is kept."""

    SERVER = "server"
    CALLER = "caller"


class Identity(StrEnum):
    """By what a caller is known."""

    API_KEY = "api-key"
    JWT = "jwt"
    MTLS = "mtls"


class OnBadState(StrEnum):
    """What becomes of cached state that does not authenticate."""

    RECOMPUTE = "recompute"
    REFUSE = "refuse"
    SERVE = "serve"


class OnLoss(StrEnum):
    """What happens when the store or the keyring does not answer."""

    RECOMPUTE = "recompute"
    REFUSE = "refuse"
    SHARE = "share"


class Visible(StrEnum):
    """What a caller gets to see of reuse."""

    OWN_USAGE = "own-usage"
    OWN_HEADERS = "own-headers"
    ALL_USAGE = "all-usage"
    ALL_HEADERS = "all-headers"
    CACHE_EVENTS = "cache-events"


class Erasable(StrEnum):
    """Whose state can be erased."""

    TENANT = "tenant"
    CONVERSATION = "conversation"


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the document: no unknown field is passed over."""


class Route(_Part, frozen=True, kw_only=True):
    """How far state is shared on one route, for one model.

    Attributes:
        route: Name of a route of the gateway, for example "chat_completions"; "*" for any other.
        model: Name of a served model; "*" for any other.
        level: The narrowest span: what a conversation adds.
        leading_level: The leading system and developer messages and tool definitions, where wider.
    """

    route: Pattern
    model: Pattern
    level: SharingLevel
    leading_level: SharingLevel | None = None


class PublicPrefix(_Part, frozen=True, kw_only=True):
    """Text that every tenant may share, by the digest of its token ids."""

    name: Name
    digest: Digest


NEVER_TOLERATED = frozenset({Channel.CONTENT, Channel.DIFFERENTIAL})
"""Channels on which answers themselves are at stake."""


class Tolerated(_Part, frozen=True, kw_only=True):
    """A channel on which reuse within a scope's own tenant, or load, is accepted to show."""

    channel: Channel
    reason: Sentence


class Lapse(_Part, frozen=True, kw_only=True):
    """An exception: for this clause the promise does not hold until a day.

    Attributes:
        until: The last day, inclusive. An exception without an end cannot be written.
    """

    clause: ClauseId
    what: Sentence
    until: date


class ScopeClause(_Part, frozen=True, kw_only=True):
    """State made under one scope is reusable under the same one only."""

    tiers: dict[CacheTier, Coverage]
    dimensions: tuple[Dimension, ...]
    routes: tuple[Route, ...]
    public: tuple[PublicPrefix, ...] = ()


class OriginClause(_Part, frozen=True, kw_only=True):
    """Who says which scope a request is in."""

    tiers: dict[CacheTier, Coverage]
    set_by: ScopeSetter
    identity: tuple[Identity, ...]


class BindingClause(_Part, frozen=True, kw_only=True):
    """State is bound to the exact model, layout and place."""

    tiers: dict[CacheTier, Coverage]
    dimensions: tuple[Dimension, ...]


class UntrustedClause(_Part, frozen=True, kw_only=True):
    """State that crossed a boundary is authenticated before an engine reads it."""

    tiers: dict[CacheTier, Coverage]
    on_bad_state: OnBadState


class SecrecyClause(_Part, frozen=True, kw_only=True):
    """At rest and in transit state is unreadable, and its names say nothing."""

    tiers: dict[CacheTier, Coverage]
    encrypted: bool
    names_keyed: bool


class LifetimeClause(_Part, frozen=True, kw_only=True):
    """No state is served past an age, in seconds."""

    tiers: dict[CacheTier, Coverage]
    max_age_s: Seconds


class ErasureClause(_Part, frozen=True, kw_only=True):
    """After an erasure nothing of it is served, within a bound in seconds."""

    tiers: dict[CacheTier, Coverage]
    of: tuple[Erasable, ...]
    within_s: Seconds
    receipt: bool


class MetadataClause(_Part, frozen=True, kw_only=True):
    """A caller learns of reuse of its own state only."""

    tiers: dict[CacheTier, Coverage]
    visible: tuple[Visible, ...]
    tolerated: tuple[Tolerated, ...] = ()


class InterferenceClause(_Part, frozen=True, kw_only=True):
    """One tenant's load leaves another its share.

    Attributes:
        protected_share: Of the room, that nobody else's load takes; None for no such share.
    """

    tiers: dict[CacheTier, Coverage]
    protected_share: Share | None


class FailureClause(_Part, frozen=True, kw_only=True):
    """Loss of a store, keyring or network costs speed only."""

    tiers: dict[CacheTier, Coverage]
    on_loss: OnLoss


class EvidenceClause(_Part, frozen=True, kw_only=True):
    """How often the clauses are tested, and how small a rate of leaks has to be shown.

    Attributes:
        every_days: Evidence older than this is stale.
        rate_at_most: Upper bound on the share of answers that leak, to be shown.
        confidence: Of that bound.
        ledger: Whether every test is entered in a ledger.
    """

    every_days: Days
    rate_at_most: Share
    confidence: Share
    ledger: bool


TieredClause = (
    ScopeClause
    | OriginClause
    | BindingClause
    | UntrustedClause
    | SecrecyClause
    | LifetimeClause
    | ErasureClause
    | MetadataClause
    | InterferenceClause
    | FailureClause
)
Clause = TieredClause | EvidenceClause


def coverage(part: TieredClause, tier: CacheTier) -> Coverage:
    """Return how a clause is kept in a tier; one that it does not name is not covered."""
    return part.tiers.get(tier, Coverage.NOT_COVERED)


class Clauses(_Part, frozen=True, kw_only=True):
    """The promise, clause by clause; one that is missing is not promised."""

    scope: ScopeClause | None = None
    origin: OriginClause | None = None
    binding: BindingClause | None = None
    untrusted: UntrustedClause | None = None
    secrecy: SecrecyClause | None = None
    lifetime: LifetimeClause | None = None
    erasure: ErasureClause | None = None
    metadata: MetadataClause | None = None
    interference: InterferenceClause | None = None
    failure: FailureClause | None = None
    evidence: EvidenceClause | None = None

    def of(self, clause: ClauseId) -> Clause | None:
        """Return one clause; None where it is not promised."""
        part: Clause | None = getattr(self, clause)
        return part


class IsolationContract(_Part, frozen=True, kw_only=True):
    """A whole contract.

    Attributes:
        format: Always `FORMAT`.
        deployment: What it is about.
        version: Grows with every published change.
        published: Day of publication.
        valid_until: The last day on which it may be relied on, inclusive.
        tiers: Every tier in which the deployment keeps state, covered or not.
    """

    format: str
    deployment: Name
    version: Annotated[int, msgspec.Meta(ge=1)]
    published: date
    valid_until: date
    tiers: tuple[CacheTier, ...]
    clauses: Clauses
    exceptions: tuple[Lapse, ...] = ()
