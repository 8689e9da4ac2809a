"""Defects that give away whether somebody else has asked, and never a word of what."""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

SIDE_CHANNEL_DEFECTS = (
    Defect(
        slip=Slip.HIDDEN_SHARING,
        failure_class="O-TIME",
        channels=frozenset({Channel.TIMING}),
        summary="All salts share blocks; cached_tokens tells only of what the own salt has used.",
        opportunity=None,
        start=(),
        shows="The same long prompt under two salts; the second one is faster, that is all.",
        seen_in="arXiv 2502.07776, arXiv 2411.18191",
    ),
    Defect(
        slip=Slip.CACHED_TOKENS_GLOBAL,
        failure_class="O-META",
        channels=frozenset({Channel.METADATA}),
        summary="cached_tokens counts blocks that another salt has; nothing of them is reused.",
        opportunity=None,
        start=(),
        shows="The same prompt under two salts; the second answer reports a hit and is not faster.",
        seen_in="litellm#29955, llm-d-router#1389",
    ),
    Defect(
        slip=Slip.CACHE_HEADER_GLOBAL,
        failure_class="O-META",
        channels=frozenset({Channel.METADATA}),
        summary="The header x-cache says hit for what another salt has asked; it is not served.",
        opportunity=None,
        start=("--answers", "1000"),
        shows="The same greedy request under two salts; the second answer says hit.",
        seen_in="litellm#29955",
    ),
    Defect(
        slip=Slip.QUOTA_IGNORED,
        failure_class="O-TIME",
        channels=frozenset({Channel.TIMING, Channel.METADATA}),
        summary="No salt is kept to its share of the memory; who asks much evicts the others.",
        opportunity=None,
        start=("--blocks", "256", "--scope-quota", "64"),
        shows="A prompt that comes again after another salt has filled the memory.",
        seen_in="NDSS 2025 PromptPeek, LMCache#4664",
    ),
)
