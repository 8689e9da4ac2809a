"""The plan of an audit: everything that is decided before the first request is sent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from kvward import __version__
from kvward.terms import CacheTier, Channel, ProbeScope

BLOCK_TOKENS = (
    16  # lengths are taken around multiples of this; other block sizes divide or contain it
)
LOAD_CHANNELS = frozenset({Channel.CONTENT, Channel.DIFFERENTIAL})
"""Read from answers under load; the others from coin-flipped pairs."""
OUTPUTS_PER_TURN_OUTPUT = 5
"""One of so many outputs under load answers a turn of a dialogue, where those are planned."""
DOOR_ROUNDS = 8
"""How often each side door is asked while the load runs; once more after it."""
FORGERY_CYCLE = 4
"""Numbers of forged pairs after which the kinds of forgery repeat."""
MAX_FLOOD_TOKENS = 1 << 28
WARM_UP_CALLS = 3
"""Sent to each address and route behind a flush, and not measured."""
TURN_NAMES = ("c1", "c2", "c3", "c4")
"""Conversation names, the same for every tenant on purpose: a name is not a scope."""
CROWD = "crowd"
"""Conversation of the requests that differ in their pictures only."""


MAX_LIFETIME_S = 86_400
FORMAT_VERSION = 3
"""Of plans and histories. 1 had one route, one address and no preset, 2 no other model, salts,
pictures or dialogues; files of them name none."""


class Tier(StrEnum):
    """How much an audit looks at."""

    SMOKE = "smoke"
    NIGHTLY = "nightly"
    RELEASE = "release"


class Route(StrEnum):
    """A kind of route that prompts go to, by the name the field has for it."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


class Elicitation(StrEnum):
    """How words that a model attends to are brought to light."""

    LOGPROBS = "logprobs"
    """The canary model counts them; each shows, whatever is printed."""
    TEXT = "text"
    """Any model, asked to go on with repeated lines; only what it prints shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many trials a tier plans.

    Attributes:
        content_outputs: Outputs read for foreign content under load.
        control_outputs: Outputs of the content control (own canary read back).
        pairs: Coin-flipped pairs for each probe scope, read for metadata and timing.
        crowd: Requests of one text with a picture of its own each, in which two pictures that
            are taken for one show; only where pictures are planned.
    """

    content_outputs: int
    control_outputs: int
    pairs: int
    crowd: int = 0


TIER_SIZES = {
    Tier.SMOKE: Sizes(content_outputs=600, control_outputs=60, pairs=40, crowd=800),
    Tier.NIGHTLY: Sizes(content_outputs=10_240, control_outputs=300, pairs=400, crowd=2_000),
    Tier.RELEASE: Sizes(content_outputs=30_720, control_outputs=600, pairs=1_200, crowd=4_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One question: may state made by the writer be seen by the reader on this channel?

    `reuse_expected` is True for the positive control, and for own state after a flood, where its
    absence is a violation; False where reuse is one.
    """

    scope: ProbeScope
    channel: Channel
    reuse_expected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A fixed audit. Holds no key and no prompt; `digest` names it in every verdict.

    Attributes:
        seed: Drives every prompt, length, order and coin. 0 <= seed < 2^63.
        alpha: Family-wise error rate of the whole audit, 0 < alpha < 0.5; statistical cells
            divide it among themselves.
        confidence: Level of the published bounds.
        clients: Requests in flight at once in the content phase.
        prompt_tokens: Length of the prompts of the pairs.
        run_nonce: Drawn for every run, so that a repeated seed does not meet its own cached state.
        cache_tier: Which tier is put to the test. For any but the device all pairs are primed
            first; then the operator's command empties the device; then all are probed.
        format_version: Of this plan and the history that it heads.
        route: The first of `routes`.
        routes: Kinds of route that prompts go to, one for each pair and each prompt, by the seed.
        replicas: Addresses of one stack that requests go to by the seed; `url` is the first.
        preset, preset_reason: What the target is taken for, and why.
        counter_hint: How the target is made to report reuse; empty where nobody knows.
        streamed: Whether answers are streamed, so that the first token has a time of its own.
        other_model: Another model, revision or adapter of the same server; empty for none.
        reloads: Whether the operator can load other weights under one name between two requests.
        elicitation: How content is read.
        erases: Whether the operator can have a conversation erased.
        lifetime_s: After how many seconds no state may be reused; 0 where nobody said.
        salts: What the auditor sends as each tenant's scope, as a gateway would; empty where the
            stack decides by the tenants' keys.
        doors: Names of the side doors that are asked in the content phase, as the preset has them.
        saves_state: Whether the preset knows how a slot's state is saved and put back.
        protected_tokens: What the operator promises to keep for every tenant; None for nothing.
        protected_words: Length of the prompts that have to survive a flood.
        flood_tokens: How much another tenant asks in between, at least.
    """

    url: str
    model: str
    route: Route
    tenants: tuple[str, ...]
    tier: Tier
    seed: int
    alpha: float
    confidence: float
    clients: int
    prompt_tokens: int
    sizes: Sizes
    cells: tuple[Cell, ...]
    run_nonce: str = ""
    cache_tier: CacheTier = CacheTier.DEVICE
    tool_version: str = __version__
    format_version: int = 1
    routes: tuple[Route, ...] = (Route.COMPLETIONS,)
    replicas: tuple[str, ...] = ()
    preset: str = ""
    preset_reason: str = ""
    counter_hint: str = ""
    streamed: bool = True
    other_model: str = ""
    reloads: bool = False
    erases: bool = False
    lifetime_s: float = 0.0
    elicitation: Elicitation = Elicitation.LOGPROBS
    salts: Mapping[str, str] = field(default_factory=dict)
    doors: tuple[str, ...] = ()
    saves_state: bool = False
    protected_tokens: int | None = None
    protected_words: int = 0
    flood_tokens: int = 0

    @property
    def num_statistical_cells(self) -> int:
        """Return how many cells share `alpha`: every one outside the positive control."""
        return sum(cell.scope is ProbeScope.S8 or not cell.reuse_expected for cell in self.cells)

    @property
    def evidence_threshold(self) -> float:
        """Return the e-value at which a timing cell is `VIOLATED`: number of cells / alpha."""
        return max(1, self.num_statistical_cells) / self.alpha

    @property
    def pair_scopes(self) -> tuple[ProbeScope, ...]:
        """Return the probe scopes that pairs are run for."""
        wanted = {c.scope for c in self.cells if c.channel not in LOAD_CHANNELS}
        return tuple(scope for scope in ProbeScope if scope in wanted)

    @property
    def has_content(self) -> bool:
        """Tell whether the content phase is planned."""
        return any(cell.channel in LOAD_CHANNELS for cell in self.cells)

    @property
    def has_dialogues(self) -> bool:
        """Tell whether dialogues are part of the content phase."""
        return any(
            cell.channel is Channel.CONTENT and cell.scope is ProbeScope.S1 for cell in self.cells
        )

    @property
    def num_turn_outputs(self) -> int:
        """Return how many of the content phase's outputs are answers of dialogues, at least."""
        return self.sizes.content_outputs // OUTPUTS_PER_TURN_OUTPUT if self.has_dialogues else 0

    @property
    def num_batches(self) -> int:
        """Return how often the device is emptied behind a flush: once more for what is changed."""
        changed = {ProbeScope.S6: self.erases, ProbeScope.S4: self.reloads}
        return 1 + any(changed.get(scope, False) for scope in self.pair_scopes)

    @property
    def num_crowd(self) -> int:
        """Return how many requests with pictures of their own are planned."""
        return self.sizes.crowd if ProbeScope.S7 in self.pair_scopes else 0

    @property
    def num_door_requests(self) -> int:
        """Return how often side doors are asked, if they all are there."""
        places = len(self.tenants) * max(1, len(self.replicas))
        return (DOOR_ROUNDS + 1) * len(self.doors) * places if self.has_content else 0

    @property
    def num_flood_prompts(self) -> int:
        """Return how many prompts make one flood; 0 where none is planned."""
        if ProbeScope.S8 not in self.pair_scopes or self.protected_words < 1:
            return 0
        return -(-self.flood_tokens // self.protected_words)

    @property
    def num_side_requests(self) -> int:
        """Return the number of requests that are no output and no probe."""
        restored = self.saves_state and ProbeScope.S5 in self.pair_scopes
        floods = self.sizes.pairs * (self.num_flood_prompts + 2) if self.num_flood_prompts else 0
        saved = max(1, len(self.replicas)) + self.sizes.pairs if restored else 0
        return self.num_door_requests + saved + floods

    @property
    def num_side_words(self) -> int:
        """Return how many words they have, all of them in floods and around them."""
        prompts = self.num_flood_prompts + 2 if self.num_flood_prompts else 0
        return self.sizes.pairs * prompts * self.protected_words

    @property
    def num_requests(self) -> int:
        """Return the number of requests planned, one priming and two probes for each pair."""
        content = self.sizes.content_outputs + 2 * self.sizes.control_outputs
        pairs = 3 * self.sizes.pairs * len(self.pair_scopes)
        accesses = len(self.tenants) * max(1, len(self.replicas))
        own = (content if self.has_content else 0) + pairs + self.num_crowd
        return accesses + own + self.num_side_requests

    @property
    def num_tokens(self) -> int:
        """Return about how many prompt tokens are sent."""
        content = (self.sizes.content_outputs + 2 * self.sizes.control_outputs) * 200
        pairs = 3 * self.sizes.pairs * len(self.pair_scopes) * self.prompt_tokens
        crowd = self.num_crowd * 2 * BLOCK_TOKENS
        return (content if self.has_content else 0) + pairs + crowd + self.num_side_words

    def estimated_seconds(self, *, seconds_per_request: float) -> float:
        """Return about how long it takes, content at `clients` in flight, pairs one by one."""
        content = self.sizes.content_outputs + 2 * self.sizes.control_outputs
        pairs = 3 * self.sizes.pairs * len(self.pair_scopes) + self.num_crowd
        waves = content / max(1, self.clients) if self.has_content else 0
        requests = waves + pairs + self.num_side_requests
        return requests * seconds_per_request + self.lifetime_s

    def to_json(self) -> bytes:
        """Return the canonical JSON of the plan: sorted keys, no white space."""
        return msgspec.json.encode(self, order="deterministic")

    @property
    def digest(self) -> str:
        """Return the SHA-256 of `to_json`, in hex."""
        return hashlib.sha256(self.to_json()).hexdigest()
