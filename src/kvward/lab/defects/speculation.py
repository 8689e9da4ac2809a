"""Defects of speculation: a draft comes from somebody else, or is rejected and stays."""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

_DRAFTS = ("--draft-tokens", "4")

SPECULATION_DEFECTS = (
    Defect(
        slip=Slip.DRAFT_LANE_NOT_RESET,
        failure_class="S-SPEC",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="Drafts come from the request before in the lane, and in company none is verified.",
        opportunity="request that takes a lane in which another one has run",
        start=_DRAFTS,
        shows="Answers of several tokens, to different prompts at the same time.",
        seen_in="llama.cpp#28286, vllm#46088",
    ),
    Defect(
        slip=Slip.DRAFT_ROLLBACK_SHORT,
        failure_class="S-SPEC",
        channels=frozenset({Channel.DIFFERENTIAL}),
        summary="A rejected draft stays in the cache, and the answer goes on from it.",
        opportunity="draft that is rejected with more of the answer to come",
        start=_DRAFTS,
        shows="Answers of several tokens, and prompts that continue them.",
        seen_in="DSpark profile PR#3, which published unverified tokens",
    ),
)
