"""One text behind many pictures: what is short in the name of one shows where two of them meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kvward.audit.exchange import Call
from kvward.audit.pictures import draw_image
from kvward.audit.plan import BLOCK_TOKENS, CROWD, Plan
from kvward.audit.prompts import Prompt, derive_random, write_probe_prompt


async def run_crowd(plan: Plan, send: Callable[[Call, Prompt], Awaitable[None]]) -> None:
    """Send one text with a fresh picture before it, many times, as one tenant.

    No picture was sent before, so nothing may be reused.

    Args:
        send: Sends a call and records it.
    """
    prompt = write_probe_prompt(
        plan.seed, num_words=2 * BLOCK_TOKENS, nonce=f"{plan.run_nonce}:{CROWD}"
    )
    numbers = iter(range(plan.num_crowd))

    async def client() -> None:
        for number in numbers:
            random = derive_random(plan.seed, CROWD, plan.run_nonce, number)
            call = Call(
                tenant=plan.tenants[0],
                prompt=prompt.text,
                max_tokens=1,
                conversation=CROWD,
                image=draw_image(random),
            )
            await send(call, prompt)

    async with asyncio.TaskGroup() as group:
        for _ in range(plan.clients):
            group.create_task(client())
