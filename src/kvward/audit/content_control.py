"""The content phase's control: own canaries, sent twice, the second time read from the cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvward.audit.canary.codebook import Session
from kvward.audit.elicitation import TEXT_TOKENS, as_lines
from kvward.audit.exchange import Call
from kvward.audit.history import Arm
from kvward.audit.load import Send, logprobs_of
from kvward.audit.plan import Elicitation, Plan
from kvward.audit.prompts import Prompt, write_canary_prompt

_WORDS = 12 * 16
_CLIENTS = 4
_FIRST_NONCE = 1_000_000_000  # apart from the nonces of the load


async def run_content_control(plan: Plan, sessions: Sequence[Session], send: Send) -> None:
    """Send every control output of a plan.

    Args:
        send: Sends a call, records the trial and returns the reply.
    """
    numbers = iter(range(plan.sizes.control_outputs))

    async def client() -> None:
        for number in numbers:
            session = sessions[number % len(sessions)]
            prompt, max_tokens = _prompt(plan, session, number)
            for arm in (Arm.CONTROL_WRITE, Arm.CONTROL_READ):
                call = Call(
                    tenant=session.tenant,
                    prompt=prompt.text,
                    max_tokens=max_tokens,
                    conversation=session.conversation,
                    logprobs=logprobs_of(plan),
                )
                await send(arm, session, prompt, call)

    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(client())


def _prompt(plan: Plan, session: Session, number: int) -> tuple[Prompt, int]:
    """Return what holds a session's canary, and how many tokens of an answer show it."""
    nonce = _FIRST_NONCE + number
    if plan.elicitation is Elicitation.TEXT:
        lines = as_lines(
            plan.seed, session, of_canary=True, prefix_words=0, num_words=_WORDS, nonce=nonce
        )
        return lines, TEXT_TOKENS
    return write_canary_prompt(plan.seed, session, num_words=_WORDS, nonce=nonce), 1
