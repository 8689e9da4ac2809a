"""`kvward lab press`: push everything else out of the lab engine's memory, by fresh prompts."""

from __future__ import annotations

import asyncio
import secrets

import click

from kvward.cli.credential import check_address
from kvward.errors import AuditError

_WORDS = 512
_TIMES_OVER = 2


@click.command("press", hidden=True)
@click.argument("url")
@click.option("--blocks", type=click.IntRange(1), required=True)
def command(*, url: str, blocks: int) -> None:
    """Send fresh prompts of twice as many blocks as the engine at URL keeps in its memory."""
    check_address(url)
    asyncio.run(_press(url, blocks))


async def _press(url: str, blocks: int) -> None:
    # Not above: whoever serves the lab imports this module, and need not wait for a client.
    from kvward.audit.exchange import Call, Ending
    from kvward.audit.plan import BLOCK_TOKENS
    from kvward.audit.prompts import write_probe_prompt
    from kvward.audit.target import Target

    tenant, nonce = "press", secrets.token_hex(8)
    keys = {tenant: f"press-{nonce}"}
    async with Target([url], keys, model=None, max_connections=1) as target:
        for number in range(-(-_TIMES_OVER * blocks * BLOCK_TOKENS // _WORDS)):
            prompt = write_probe_prompt(0, num_words=_WORDS, nonce=f"press:{nonce}:{number}")
            call = Call(tenant=tenant, prompt=prompt.text, max_tokens=1, conversation=None)
            reply = await target.send(call)
            if reply.ending is not Ending.DONE:
                raise AuditError(
                    f"The engine did not answer while its memory was to be filled: {reply.error}."
                )
