"""What goes wrong in the engine, where, and how often. Nothing does unless it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from random import Random
from types import MappingProxyType


class Slip(StrEnum):
    """A place where engines have been seen to go wrong; each has the name of its defect."""

    SCOPE_MISSING = "scope-missing"
    REUSE_IN_FLIGHT = "reuse-in-flight"
    EARLY_PUBLISH = "early-publish"
    SCOPE_MISSING_OFFLOAD = "scope-missing-offload"
    SHORT_BLOCK_HASH = "short-block-hash"
    HIDDEN_SHARING = "hidden-sharing"
    CACHED_TOKENS_GLOBAL = "cached-tokens-global"
    LATE_OFFLOAD = "late-offload"
    CANCEL_IN_FLIGHT = "cancel-in-flight"
    READ_BEFORE_READY = "read-before-ready"
    PHANTOM_HIT = "phantom-hit"
    DOUBLE_OWNERSHIP = "double-ownership"
    HIT_TOO_LONG = "hit-too-long"
    LAYER_MISSING = "layer-missing"
    POSITION_SHIFT = "position-shift"
    TABLE_ROW_MIXED = "table-row-mixed"
    TORN_WRITE_SERVED = "torn-write-served"
    FAILED_LOAD_SERVED = "failed-load-served"
    MODEL_MISSING_OFFLOAD = "model-missing-offload"
    ADAPTER_MISSING = "adapter-missing"
    ADAPTER_RELOAD_STALE = "adapter-reload-stale"
    WEIGHTS_RELOAD_STALE = "weights-reload-stale"
    SALT_ADAPTER_AMBIGUOUS = "salt-adapter-ambiguous"
    MEDIA_MISSING = "media-missing"
    SHORT_MEDIA_DIGEST = "short-media-digest"
    MEDIA_SHAPE_MISSING = "media-shape-missing"
    SCOPE_MISSING_ROUTER = "scope-missing-router"
    SALT_FROM_CALLER = "salt-from-caller"
    RESPONSE_CACHE_SHARED = "response-cache-shared"
    RESPONSE_CACHE_TAIL = "response-cache-tail"
    CACHE_HEADER_GLOBAL = "cache-header-global"
    REQUEST_ID_RECYCLED = "request-id-recycled"
    STREAM_MIXED = "stream-mixed"
    SLOT_NOT_RESET = "slot-not-reset"
    SLOT_MIXED = "slot-mixed"
    SLOT_STATE_UNVERIFIED = "slot-state-unverified"
    SLOTS_REVEAL_PROMPTS = "slots-reveal-prompts"
    DRAFT_LANE_NOT_RESET = "draft-lane-not-reset"
    DRAFT_ROLLBACK_SHORT = "draft-rollback-short"
    ERASE_REPORTED_ONLY = "erase-reported-only"
    ERASE_SKIPS_OFFLOAD = "erase-skips-offload"
    QUOTA_IGNORED = "quota-ignored"


class Behaviour:
    """Decides at every such place whether it goes wrong this time. The sound one never does.

    Each slip has a random stream of its own, so that which of its opportunities are struck
    depends on the seed and on their order, and on no other defect. A slip is asked about from one
    thread only.

    Args:
        rates: For each slip that is planted, the probability per opportunity, 0 < rate <= 1.
        seed: Of the random streams.
    Attributes:
        opportunities: How often each planted slip could have happened.
        strikes: How often it did. Ground truth, for tests; no answer tells it.
    """

    def __init__(
        self, rates: Mapping[Slip, float] = MappingProxyType({}), *, seed: int = 0
    ) -> None:
        self._rates = dict(rates)
        self._random = {slip: Random(f"{seed}/{slip}") for slip in rates}  # noqa: S311 - repeatable
        self.opportunities: Counter[Slip] = Counter()
        self.strikes: Counter[Slip] = Counter()

    @property
    def planted(self) -> tuple[Slip, ...]:
        """Return what can go wrong."""
        return tuple(self._rates)

    def has(self, slip: Slip) -> bool:
        """Tell whether a slip is planted, for what has to be prepared before one can happen."""
        return slip in self._rates

    def slips(self, slip: Slip) -> bool:
        """Tell whether it goes wrong now. Every call is an opportunity, and counted."""
        rate = self._rates.get(slip)
        if rate is None:
            return False
        self.opportunities[slip] += 1
        if rate < 1 and self._random[slip].random() >= rate:
            return False
        self.strikes[slip] += 1
        return True

    def slips_once(self, slip: Slip, decided: dict[Slip, bool]) -> bool:
        """Tell whether it goes wrong for somebody for whom it is decided once.

        Args:
            decided: What has been decided for them so far, changed in place.
        """
        if slip not in self._rates:
            return False
        if slip not in decided:
            decided[slip] = self.slips(slip)
        return decided[slip]

    def pick(self, slip: Slip, num_choices: int) -> int:
        """Return which of some equal possibilities a slip takes, 0 <= choice < num_choices."""
        return self._random[slip].randrange(num_choices)


SOUND = Behaviour()
