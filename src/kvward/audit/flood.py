"""Own state after another tenant's flood (S8): who asks much must not evict others' share.

The writer primes a prompt that fits into the share that the operator promises every tenant, and
asks it again at once: it is cached. Then another tenant floods with fresh prompts, one after the
other, because what is in flight at once needs memory whoever's share it is. Then the writer probes
the primed prompt and a fresh one. Last, the other tenant asks the first prompt of its flood again:
if even that is still cached, the flood has pressed on nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kvward.audit.exchange import Call, Ending, Reply
from kvward.audit.history import Arm
from kvward.audit.pairs import Pair, conversation_of
from kvward.audit.plan import Plan
from kvward.audit.prompts import Prompt, write_probe_prompt
from kvward.terms import ProbeScope

FLOOD_SHARES = 4
"""A flood has so many times what is promised to all tenants of the audit together.

A cache that keeps the promise has room for one share of each tenant. The auditor does not know how
much more, nor how many tenants there are; whether a flood was enough is measured in each pair.
"""
_MARGIN_TOKENS = 16
"""Room in a share for what a template and one answer add to a prompt."""

Send = Callable[[Arm, str, str, Prompt, Call, Pair], Awaitable[Reply]]
"""Takes the arm, the tenant, the conversation, the prompt, the call and the pair."""


def fitting_words(protected_tokens: int, *, tokens_per_word: float, at_most: int) -> int:
    """Return how many words a prompt may have that fits into a share."""
    return min(at_most, int((protected_tokens - _MARGIN_TOKENS) / tokens_per_word))


class Flood:
    """Sends the floods of a plan.

    Args:
        send: Sends a call as part of a pair, records the trial and returns the reply.
    """

    def __init__(self, plan: Plan, send: Send) -> None:
        self._plan = plan
        self._send = send

    async def pour(self, pair: Pair) -> None:
        """Ask the primed prompt again as the writer, and then flood as another tenant."""
        if pair.scope is not ProbeScope.S8 or pair.flooder is None:
            return
        await self._ask(Arm.PRIME_AGAIN, pair.writer, pair.prompts[pair.coin - 1], pair)
        for number in range(self._plan.num_flood_prompts):
            prompt = self._prompt(pair, number)
            reply = await self._ask(Arm.FLOOD, pair.flooder, prompt, pair)
            if reply.ending is Ending.FAILED:
                return  # the pair is not counted, and a target in trouble is left alone

    async def look_back(self, pair: Pair) -> None:
        """Ask the flood's first prompt again, when the writer's probes are answered."""
        if pair.scope is ProbeScope.S8 and pair.flooder is not None:
            await self._ask(Arm.FLOOD_AGAIN, pair.flooder, self._prompt(pair, 0), pair)

    def _prompt(self, pair: Pair, number: int) -> Prompt:
        return write_probe_prompt(
            self._plan.seed,
            num_words=self._plan.protected_words,
            nonce=f"{self._plan.run_nonce}:{pair.scope}:{pair.number}:flood:{number}",
        )

    async def _ask(self, arm: Arm, tenant: str, prompt: Prompt, pair: Pair) -> Reply:
        conversation = conversation_of(pair)
        call = Call(tenant=tenant, prompt=prompt.text, max_tokens=1, conversation=conversation)
        return await self._send(arm, tenant, conversation, prompt, call, pair)
