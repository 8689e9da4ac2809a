"""A request of the auditor and its answer, as data. Knows no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

TOP_LOGPROBS = 20


class Ending(StrEnum):
    """How a request ended."""

    DONE = "done"
    CANCELLED = "cancelled"  # by us, on purpose
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to send. `extra_body` and `extra_headers` carry forged scopes.

    Attributes:
        cancel_after_s: Go away after this many seconds; None to stay to the end.
    """

    tenant: str
    prompt: str
    max_tokens: int
    conversation: str | None
    logprobs: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    cancel_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back. Times are integer nanoseconds of a monotonic clock.

    Attributes:
        ttft_ns: From sending to the first streamed token; None without one.
        top_logprobs: For each generated token its most likely tokens, (text, natural log).
        cached_tokens: What the usage says; None when the field is absent.
        scope_hint: A scope pseudonym that the target disclosed in a header, if any.
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
    response_ids: tuple[str, ...] = ()
    scope_hint: str | None = None
    error: str | None = None
