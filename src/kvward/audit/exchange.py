"""A request of the auditor and its answer, as data. Knows no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvward.audit.plan import Route

TOP_LOGPROBS = 20


class Ending(StrEnum):
    """How a request ended."""

    DONE = "done"
    CANCELLED = "cancelled"  # by us, on purpose
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgedScope:
    """A cache scope that the caller makes up, in every way that the target's API has for it.

    Attributes:
        salt: For fields that are mixed into the cache's key. [untrusted by the target]
        session: For fields that name a session, a conversation or an end user.
        tenant: Name of the tenant whose scope is forged, never its key.
    """

    salt: str
    session: str
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture made of nothing but its pixels.

    Attributes:
        pixels: Row by row, 2 bytes each, big-endian; their number is width times height.
    """

    pixels: bytes
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to send.

    Attributes:
        extra_body, extra_headers: Sent as they are, over everything else.
        forged: A scope to forge; the target's preset knows by which fields and headers.
        model: Asked for instead of the target's own; None for that one.
        salt: The tenant's, where the auditor says whose a request is as a gateway would.
        image: Stands before the prompt, on routes that take one.
        cancel_after_s: Go away after this many seconds; None to stay to the end. A call that has
            it is never repeated.
        route: Which route it goes to.
        replica: Which of the target's addresses it goes to, from 0.
    """

    tenant: str
    prompt: str
    max_tokens: int
    conversation: str | None
    logprobs: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    forged: ForgedScope | None = None
    model: str | None = None
    salt: str | None = None
    image: Image | None = None
    cancel_after_s: float | None = None
    route: Route = Route.COMPLETIONS
    replica: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back. Times are integer nanoseconds of a monotonic clock.

    Attributes:
        ttft_ns: From sending to the first streamed token; None without one.
        top_logprobs: For each generated token its most likely tokens, (text, natural log).
        prompt_tokens: All tokens of the prompt, reused or not; None when the target says nothing.
        cached_tokens, created_tokens: Tokens reused, and tokens written to a cache, as the usage
            says; None when the field is absent.
        matched_tokens: Tokens of the prompt that a router in front says it knew.
        cache_hit: Whether a header says that the answer was a hit; None where none says.
        scope_hint: A scope pseudonym that the target disclosed in a header, if any.
        model: Which model the target says has answered.
        output_digest: First 16 hex digits of the SHA-256 of the text; None without one.
        num_retries: How often the request was refused for now (429, 503) and sent again; the times
            are those of the last attempt.
        waited_s: How long that took, outside of all other times.
    """

    ending: Ending
    status: int | None
    start_ns: int
    ttft_ns: int | None
    total_ns: int
    text: str = ""
    top_logprobs: tuple[tuple[tuple[str, float], ...], ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    matched_tokens: int | None = None
    cache_hit: bool | None = None
    response_ids: tuple[str, ...] = ()
    scope_hint: str | None = None
    error: str | None = None
    created_tokens: int | None = None
    finish_reason: str | None = None
    model: str | None = None
    output_digest: str | None = None
    route: Route = Route.COMPLETIONS
    replica: int = 0
    num_retries: int = 0
    waited_s: float = 0.0
