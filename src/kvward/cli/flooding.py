"""How large a flood is, and what it may not reach, as `audit` is told."""

from __future__ import annotations

from dataclasses import dataclass

import click

from kvward.audit.flood import FLOOD_SHARES, fitting_words
from kvward.audit.plan import BLOCK_TOKENS
from kvward.audit.target import Preset
from kvward.errors import ConfigError
from kvward.terms import CacheTier

PROTECTED_TOKENS = click.option(
    "--protected-tokens",
    type=click.IntRange(min=1),
    help="What the stack promises to keep cached for every tenant; another tenant's flood may not "
    "evict it. Not tested without.",
)
FLOOD_TOKENS = click.option(
    "--flood-tokens",
    type=click.IntRange(min=1),
    help=f"Tokens of each such flood; by default {FLOOD_SHARES} times what is promised to all "
    "tenants of the audit.",
)
_MIN_WORDS = 4 * BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodSizes:
    """Of a plan's floods.

    Attributes:
        protected_tokens: None where nothing is promised, and no flood is planned.
        protected_words: Length of the prompts that have to stay.
        flood_tokens: Of each flood, at least.
    """

    protected_tokens: int | None = None
    protected_words: int = 0
    flood_tokens: int = 0


def choose_floods(
    protected_tokens: int | None,
    flood_tokens: int | None,
    *,
    preset: Preset,
    prompt_tokens: int,
    num_tenants: int,
    cache_tier: CacheTier,
) -> FloodSizes:
    """Return the floods of a plan.

    Raises:
        ConfigError: Nothing is promised, or so little that no prompt fits into it that the target
            would cache; or another tier than the engine's own memory is put to the test.
    """
    if protected_tokens is None:
        if flood_tokens is not None:
            raise ConfigError(
                "A flood is a test of what is promised to be kept.",
                hint="Add --protected-tokens with the share of the cache that every tenant has.",
            )
        return FloodSizes()
    if cache_tier is not CacheTier.DEVICE:
        raise ConfigError(
            "What a flood evicts is put to the test in the engine's own memory only.",
            hint="Leave --protected-tokens out of an audit behind a flush.",
        )
    words = fitting_words(
        protected_tokens, tokens_per_word=preset.tokens_per_word, at_most=prompt_tokens
    )
    least = max(_MIN_WORDS, preset.min_prompt_tokens)
    if words < least:
        raise ConfigError(
            f"A share of {protected_tokens} tokens holds no prompt of {least} words for certain, "
            f"and {preset.title} caches no shorter one.",
            hint="Such a share cannot be tested from outside; leave --protected-tokens out.",
        )
    flood = flood_tokens or FLOOD_SHARES * protected_tokens * num_tenants
    return FloodSizes(protected_tokens=protected_tokens, protected_words=words, flood_tokens=flood)
