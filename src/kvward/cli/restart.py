"""What is left after an engine's restart: reuse for the owner, none for anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvward.audit.exchange import Call, Ending
from kvward.audit.prompts import write_probe_prompt
from kvward.audit.target import Target
from kvward.errors import TargetError

_PROMPT_WORDS = 256
_BLOCK_WORDS = 16
_CONVERSATION = "before-and-after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """How many tokens of a prompt of `prompt_tokens` each reader had reused.

    Attributes:
        owner: The tenant and conversation that asked before the restart.
        other_conversation: The same tenant in another conversation.
        other_tenant: Another tenant under the same conversation name.
    """

    prompt_tokens: int
    owner: int
    other_conversation: int
    other_tenant: int

    def complaints(self) -> list[str]:
        """Return what is not as it should be, in sentences."""
        wrong = []
        if self.owner < self.prompt_tokens - _BLOCK_WORDS:
            wrong.append(f"after a restart the owner had only {self.owner} tokens reused.")
        if self.other_conversation or self.other_tenant:
            wrong.append("after a restart somebody else had tokens of the owner's reused.")
        return wrong


def ask_before(url: str, keys: Mapping[str, str], *, seed: int) -> None:
    """Let the first tenant's conversation leave state behind."""
    asyncio.run(_ask(url, keys, seed=seed, readers=[(next(iter(keys)), _CONVERSATION)]))


def ask_after(url: str, keys: Mapping[str, str], *, seed: int) -> Reuse:
    """Ask again after the restart: somebody else first, then the owner."""
    owner, other = list(keys)[:2]
    readers = [(other, _CONVERSATION), (owner, "another"), (owner, _CONVERSATION)]
    by_tenant, by_conversation, by_owner = asyncio.run(_ask(url, keys, seed=seed, readers=readers))
    return Reuse(
        prompt_tokens=_PROMPT_WORDS,
        owner=by_owner,
        other_conversation=by_conversation,
        other_tenant=by_tenant,
    )


async def _ask(
    url: str, keys: Mapping[str, str], *, seed: int, readers: Sequence[tuple[str, str]]
) -> list[int]:
    prompt = write_probe_prompt(seed, num_words=_PROMPT_WORDS, nonce="restart").text
    cached = []
    async with Target(url, keys, model=None, max_connections=1) as target:
        for tenant, conversation in readers:
            reply = await target.send(
                Call(tenant=tenant, prompt=prompt, max_tokens=1, conversation=conversation)
            )
            if reply.ending is not Ending.DONE or reply.cached_tokens is None:
                raise TargetError(f"The engine did not answer: {reply.error or reply.status}.")
            cached.append(reply.cached_tokens)
    return cached
