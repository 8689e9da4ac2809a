"""Defects of the key: two requests that must not meet have one name for their state.

The engine computes right answers for whoever stored the state; it hands them to somebody else.
"""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

KEY_DEFECTS = (
    Defect(
        slip=Slip.SCOPE_MISSING,
        failure_class="K-SCOPE",
        channels=frozenset({Channel.METADATA, Channel.TIMING}),
        summary="The salt of a request does not enter the hash of its blocks.",
        opportunity=None,
        start=(),
        shows="The same prompt under two salts; the second one hits.",
        seen_in="LMCache#2878, ktransformers#2184",
    ),
    Defect(
        slip=Slip.SCOPE_MISSING_OFFLOAD,
        failure_class="K-SCOPE",
        channels=frozenset({Channel.METADATA, Channel.TIMING}),
        summary="Blocks are named without their salt in the host tier, and only there.",
        opportunity=None,
        start=("--blocks", "96", "--host-blocks", "4096"),
        shows="A prompt that has left the engine's memory comes again under another salt.",
        seen_in="LMCache#2878, LMCache#4825",
    ),
    Defect(
        slip=Slip.SHORT_BLOCK_HASH,
        failure_class="K-HASH",
        channels=frozenset({Channel.CONTENT, Channel.METADATA}),
        summary="A block is found by 16 bits of its hash, and its tokens are not compared.",
        opportunity=None,
        start=("--blocks", "2048"),
        shows="Many different prompts: of n cached blocks, n in 65,536 look-ups hit a wrong one.",
        seen_in="openvino.genai#3722, vllm#51875",
    ),
)
