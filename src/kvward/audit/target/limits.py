"""What an audit may cost: requests, tokens, money, pace.

A plan that would exceed a limit is refused before its first request. While it runs, the same
limits stop the sending: what is not sent becomes a failed trial, so that a limit can make an
audit inconclusive but never clean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from kvward.audit.elicitation import TEXT_TOKENS
from kvward.audit.exchange import Call, Reply
from kvward.audit.plan import (
    BLOCK_TOKENS,
    LOAD_CHANNELS,
    TIER_SIZES,
    WARM_UP_CALLS,
    Elicitation,
    Plan,
    Tier,
)
from kvward.audit.target.preset import Preset
from kvward.errors import BudgetExceededError, ConfigError
from kvward.terms import CacheTier

_MILLION = 1_000_000
_OUTPUT_TOKENS = {Elicitation.LOGPROBS: 24, Elicitation.TEXT: TEXT_TOKENS}
"""Of the longest answers of the content phase; one token in pairs."""
_CONTENT_WORDS = 400  # the longest prompts of the content phase
_CANCELLED_RATIO = 0.2  # of the content phase, cancelled on purpose and asked again; 0.13 expected
_MAX_RETRY_AFTER_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for a million tokens. Reused tokens are priced like all others: an upper bound."""

    prompt: float
    completion: float

    @classmethod
    def parse(cls, text: str) -> Price:
        """Read "2.5" (both) or "2.5,10" (prompt, completion).

        Raises:
            ConfigError: It is not written like that, or negative.
        """
        try:
            values = [float(part) for part in text.split(",")]
        except ValueError:
            values = []
        if len(values) not in {1, 2} or not all(0 <= value < _MILLION for value in values):
            raise ConfigError(
                f"A price is not written as {text[:40]}.",
                hint="Write US dollars for a million tokens, for example --price 2.5,10 for "
                "prompt and answer.",
            )
        return cls(prompt=values[0], completion=values[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an audit may not exceed; None is no limit.

    Attributes:
        max_rps: Requests begun in a second.
        max_requests: Requests sent, repeated ones included.
        max_tokens_total: Tokens of prompts and answers together.
        max_cost: US dollars; needs `price`.

    Raises:
        ConfigError: A limit is not positive, or `max_cost` has no price.
    """

    max_rps: float | None = None
    max_requests: int | None = None
    max_tokens_total: int | None = None
    max_cost: float | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        for value in (self.max_rps, self.max_requests, self.max_tokens_total, self.max_cost):
            if value is not None and value <= 0:
                raise ConfigError("A limit is a number above zero.")
        if self.max_cost is not None and self.price is None:
            raise ConfigError(
                "--max-cost needs to know what tokens cost.",
                hint="Add --price with US dollars for a million tokens, for example --price 2.5,10",
            )


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What a plan costs at most, or what a run has cost. `cost` is None without a price."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    def excess(self, limits: Limits) -> str | None:
        """Return which limit is exceeded, in words; None when none is."""
        tokens = self.prompt_tokens + self.completion_tokens
        if limits.max_requests is not None and self.requests > limits.max_requests:
            return f"{self.requests} requests, and {limits.max_requests} are allowed"
        if limits.max_tokens_total is not None and tokens > limits.max_tokens_total:
            return f"up to {tokens} tokens, and {limits.max_tokens_total} are allowed"
        if (
            limits.max_cost is not None
            and self.cost is not None
            and self.cost > limits.max_cost + 1e-9
        ):
            return f"up to {self.cost:.2f} USD, and {limits.max_cost:.2f} USD are allowed"
        return None


def planned_spend(plan: Plan, preset: Preset, price: Price | None) -> Spend:
    """Return what a plan costs at most, without requests that the target refuses for now."""
    cancelled = round(plan.sizes.content_outputs * _CANCELLED_RATIO)
    content = plan.sizes.content_outputs + cancelled + 2 * plan.sizes.control_outputs
    content = content if plan.has_content else 0
    pairs = 3 * plan.sizes.pairs * len(plan.pair_scopes)
    places = max(1, len(plan.replicas)) * len(plan.routes)
    warm_up = (
        0 if plan.cache_tier is CacheTier.DEVICE else WARM_UP_CALLS * places * plan.num_batches
    )
    pairs += warm_up
    crowd = plan.num_crowd * 2 * BLOCK_TOKENS
    words = content * _CONTENT_WORDS + pairs * plan.prompt_tokens + plan.num_side_words + crowd
    prompt = round(words * preset.tokens_per_word)
    completion = (
        content * _OUTPUT_TOKENS[plan.elicitation] + pairs + plan.num_side_requests + plan.num_crowd
    )
    cost = None
    if price is not None:
        written = price.prompt * preset.write_price_ratio
        cost = (prompt * written + completion * price.completion) / _MILLION
    return Spend(
        requests=plan.num_requests + warm_up + (cancelled if plan.has_content else 0),
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=cost,
    )


def check_budget(plan: Plan, preset: Preset, limits: Limits) -> Spend:
    """Return what a plan costs at most.

    Raises:
        BudgetExceededError: More than the limits allow; the hint says what would fit.
    """
    spend = planned_spend(plan, preset, limits.price)
    excess = spend.excess(limits)
    if excess is not None:
        raise BudgetExceededError(
            f"The plan needs {excess}. Nothing of it was sent.",
            hint=_what_fits(plan, preset, limits),
        )
    return spend


def _what_fits(plan: Plan, preset: Preset, limits: Limits) -> str:
    def fits(candidate: Plan) -> bool:
        return planned_spend(candidate, preset, limits.price).excess(limits) is None

    for tier in (Tier.RELEASE, Tier.NIGHTLY, Tier.SMOKE):
        if fits(replace(plan, tier=tier, sizes=TIER_SIZES[tier])):
            return f"--tier {tier} fits."
    smoke = replace(plan, tier=Tier.SMOKE, sizes=TIER_SIZES[Tier.SMOKE])
    for channels in _narrower_channels(plan):
        cells = tuple(cell for cell in plan.cells if cell.channel in channels)
        if cells and fits(replace(smoke, cells=cells)):
            names = " ".join(f"--channel {channel}" for channel in channels)
            return f"--tier smoke {names} fits."
    short = max(64, preset.min_prompt_tokens)
    if fits(replace(smoke, prompt_tokens=short)):
        return f"--tier smoke --prompt-tokens {short} fits."
    least = planned_spend(smoke, preset, limits.price)
    cost = "" if least.cost is None else f", {least.cost:.2f} USD"
    tokens = least.prompt_tokens + least.completion_tokens
    return (
        f"No tier fits. The smallest, smoke, needs {least.requests} requests, up to {tokens} "
        f"tokens{cost}."
    )


def _narrower_channels(plan: Plan) -> list[tuple[str, ...]]:
    channels = list(dict.fromkeys(cell.channel.value for cell in plan.cells))
    paired = tuple(c for c in channels if c not in LOAD_CHANNELS)
    return [paired, *((c,) for c in channels)]


class Budget:
    """Counts what a run spends, and says when to stop.

    A request is paid for before it is sent, with what it may cost at most; the answer's own
    counts replace that.
    """

    def __init__(self, limits: Limits, preset: Preset) -> None:
        self._limits = limits
        self._preset = preset
        self._requests = 0
        self._prompt = 0
        self._completion = 0

    @property
    def spent(self) -> Spend:
        """Return what was spent so far, requests under way at their most."""
        cost = None
        price = self._limits.price
        if price is not None:
            written = price.prompt * self._preset.write_price_ratio
            cost = (self._prompt * written + self._completion * price.completion) / _MILLION
        return Spend(
            requests=self._requests,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            cost=cost,
        )

    def take(self, call: Call) -> str | None:
        """Pay for one request; return why it may not be sent, in words, or None."""
        prompt, completion = self._most(call)
        self._add(1, prompt, completion)
        excess = self.spent.excess(self._limits)
        if excess is not None:
            self._add(-1, -prompt, -completion)
        return excess

    def settle(self, call: Call, reply: Reply) -> None:
        """Replace what a request might have cost by what its answer says."""
        prompt, completion = self._most(call)
        if reply.prompt_tokens is not None:
            self._prompt += reply.prompt_tokens - prompt
        if reply.completion_tokens is not None:
            self._completion += reply.completion_tokens - completion

    def refund(self, call: Call) -> None:
        """Take back the tokens of a request that was refused unread; it still was a request."""
        prompt, completion = self._most(call)
        self._add(0, -prompt, -completion)

    def _most(self, call: Call) -> tuple[int, int]:
        words = call.prompt.count(" ") + 1
        return round(words * self._preset.tokens_per_word), call.max_tokens

    def _add(self, requests: int, prompt: int, completion: int) -> None:
        self._requests += requests
        self._prompt += prompt
        self._completion += completion


class Pace:
    """Spaces out the beginnings of requests, and keeps away from an address that asked for it."""

    def __init__(self, max_rps: float | None, num_replicas: int) -> None:
        self._gap_s = 0.0 if max_rps is None else 1 / max_rps
        self._next_s = 0.0
        self._not_before_s: Sequence[float] = [0.0] * num_replicas

    async def wait(self, replica: int) -> None:
        """Return when a request to this address may begin."""
        while True:
            now = time.monotonic()
            pause = self._not_before_s[replica] - now
            if pause <= 0:
                if not self._gap_s:
                    return
                turn = max(now, self._next_s)
                self._next_s = turn + self._gap_s
                pause = turn - now
                if pause > 0:
                    await asyncio.sleep(pause)
                return
            await asyncio.sleep(pause)

    def pause(self, replica: int, seconds: float) -> None:
        """Send nothing to an address for a while."""
        pauses = list(self._not_before_s)
        pauses[replica] = max(pauses[replica], time.monotonic() + seconds)
        self._not_before_s = pauses


def parse_retry_after(text: str | None, *, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header: a number or an HTTP date. [untrusted]

    Args:
        now: With a time zone.
    Returns:
        At least 0; None when there is no header that can be understood.
    """
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - now).total_seconds()
    if not -_MAX_RETRY_AFTER_S <= seconds <= _MAX_RETRY_AFTER_S:  # nor is it "nan"
        return None
    return max(0.0, seconds)
