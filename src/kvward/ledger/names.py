"""Words that an entry may hold. Whatever is not listed here is written down as "other".

Lists, not patterns: a tenant's name would fit a pattern. Only values may be added, and a program
that does not know one says that the entry is of a later version.
"""

from __future__ import annotations

from enum import StrEnum


class SeedSource(StrEnum):
    """Who chose the seed of a plan."""

    GIVEN = "given"
    DRAWN = "drawn"
    THIRD_PARTY = "third-party"


class DropReason(StrEnum):
    """Why entries are not in the log."""

    QUEUE_FULL = "queue-full"
    CUT_AFTER_CRASH = "cut-after-crash"


class CountedEvent(StrEnum):
    """Events that are counted: what was refused, did not open, or could not be done."""

    GATEWAY_REFUSED = "gateway.refused"
    GATEWAY_BROKEN = "gateway.broken"
    GATEWAY_KEYRING_OUT = "gateway.keyring-out"
    GATEWAY_BOUNDARY_UNKNOWN = "gateway.boundary-unknown"
    GATEWAY_ROUTE_UNKNOWN = "gateway.route-unknown"
    GATEWAY_ROUTES_UNSEEN = "gateway.routes-unseen"
    WARD_SALT_REFUSED = "ward.salt-refused"
    WARD_OWNER_REFUSED = "ward.owner-refused"
    WARD_READ_REFUSED = "ward.read-refused"
    TIER_DROPPED = "tier.dropped"
    STORE_REFUSED = "store.refused"
    STORE_INCOMPLETE = "store.incomplete"
    STORE_NOT_KEPT = "store.not-kept"
    STORE_UNAVAILABLE = "store.unavailable"
    VLLM_SALT_REFUSED = "vllm.salt-refused"
    VLLM_OWNER_REFUSED = "vllm.owner-refused"
    VLLM_SPANS_REFUSED = "vllm.spans-refused"
    VLLM_LOAD_REFUSED = "vllm.load-refused"
    VLLM_LOAD_FAILED = "vllm.load-failed"
    VLLM_UNCACHEABLE = "vllm.uncacheable"
    VLLM_ADAPTER_UNKNOWN = "vllm.adapter-unknown"
    OTHER = "other"


class CountedReason(StrEnum):
    """Why, where the event says it."""

    # The gateway: nobody known, and HTTP statuses.
    UNAUTHENTICATED = "unauthenticated"
    HTTP_400 = "400"
    HTTP_401 = "401"
    HTTP_403 = "403"
    HTTP_404 = "404"
    HTTP_405 = "405"
    HTTP_409 = "409"
    HTTP_411 = "411"
    HTTP_413 = "413"
    HTTP_415 = "415"
    HTTP_421 = "421"
    HTTP_422 = "422"
    HTTP_429 = "429"
    HTTP_500 = "500"
    HTTP_501 = "501"
    HTTP_502 = "502"
    HTTP_503 = "503"
    HTTP_504 = "504"
    # A lease on a block in memory.
    OTHER_SCOPE = "other-scope"
    OTHER_CONTENT = "other-content"
    LEASE_ENDED = "lease-ended"
    NOT_COMMITTED = "not-committed"
    # A sealed block that did not open.
    TOO_SHORT = "too-short"
    NOT_A_BLOCK = "not-a-block"
    VERSION = "version"
    SUITE = "suite"
    RESERVED = "reserved"
    LENGTH = "length"
    OTHER_KEY = "other-key"
    OTHER_EPOCH = "other-epoch"
    EXPIRED = "expired"
    FROM_THE_FUTURE = "from-the-future"
    NOT_AUTHENTIC = "not-authentic"
    # A store or a keyring.
    MISSING_PART = "missing-part"
    NO_ROOM = "no-room"
    BACKEND_UNAVAILABLE = "store.backend-unavailable"
    BACKEND_DATA = "store.backend-data"
    QUOTA_EXCEEDED = "store.quota-exceeded"
    EPOCH_RETIRED = "keyring.epoch-retired"
    KEY_UNAVAILABLE = "keyring.unavailable"
    KEYRING_NO_ANSWER = "keyring.no-answer"
    # An adapter inside an engine.
    OTHER_TOKENS = "other-tokens"
    ADAPTER_CHANGED = "adapter-changed-meanwhile"
    ADAPTER_UNREADABLE = "unreadable"
    ADAPTER_CHANGED_ON_DISK = "changed-on-disk"
    ADAPTER_NEWER = "newer-than-the-engine"
    OTHER = "other"
