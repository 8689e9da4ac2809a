"""`kvward gateway prefix`: find the tokens of a public prefix, by the engine's own rendering."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import click

from kvward.cli.credential import parse_key
from kvward.errors import ConfigError, TargetUnreachableError
from kvward.gateway.spans import TOKENIZE_PATH, find_leading_tokens
from kvward.keeping import RegisteredPrefix, prefix_digest

_TIMEOUT_S = 30.0


@click.command("prefix")
@click.argument("url", metavar="URL")
@click.option("--name", required=True, help="Of the prefix, in the policy.")
@click.option("--model", required=True, help="Model whose tokens are counted.")
@click.option(
    "--system",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the text of the system message.",
)
@click.option("--key", required=True, metavar="KEY", help="An API key, or env:VARIABLE.")
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the token ids, beside the policy.",
)
def command(*, url: str, name: str, model: str, system: Path, key: str, out: Path) -> None:
    """Write the tokens that every chat with a system message begins with.

    URL is the gateway's, or the engine's. What is printed goes into the policy; then restart
    gateway and engine, and let an operator warm the prefix up. Everybody shares it from then on.
    """
    try:
        text = system.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{system} is not UTF-8.") from exc
    tokens = asyncio.run(_find(url.rstrip("/"), model, text, parse_key(key)))
    if not tokens:
        raise ConfigError(
            "The prompt does not begin with the system message, whatever a user says.",
            hint="The model's chat template puts something of the user first.",
        )
    out.write_text(json.dumps(tokens) + "\n", encoding="utf-8")
    digest = prefix_digest(RegisteredPrefix(name=name, token_ids=tuple(tokens)))
    click.echo(f"[[public_prefixes]]\nname = {json.dumps(name)}")
    click.echo(f"token_ids_file = {json.dumps(out.name)}")
    click.echo(
        f"{len(tokens)} tokens, shared in whole blocks. Add these lines to the policy.\n"
        f"A contract lists it under [[clauses.scope.public]] by its digest, {digest}.",
        err=True,
    )


async def _find(url: str, model: str, text: str, key: str) -> list[int]:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    said = "it did not answer"
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def render(body: bytes) -> bytes | None:
            nonlocal said
            try:
                async with session.post(
                    url + TOKENIZE_PATH, data=body, headers=headers
                ) as response:
                    content = await response.read()
                    said = f"it answered with HTTP {response.status}"
                    return content if response.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
                said = f"it did not answer ({type(exc).__name__})"
                return None

        leading = [{"role": "system", "content": text}]
        tokens = await find_leading_tokens(leading, {"model": model}, render)
    if tokens is None:
        raise TargetUnreachableError(
            f"{url}{TOKENIZE_PATH} did not render the message: {said}.",
            hint="The engine has to have a chat template and the route /tokenize.",
        )
    return tokens
