"""Defects of geometry: the right state in the wrong place, or not all of it."""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

_HOST = ("--blocks", "96", "--host-blocks", "4096")

GEOMETRY_DEFECTS = (
    Defect(
        slip=Slip.HIT_TOO_LONG,
        failure_class="G-GEOM",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL, Channel.METADATA}),
        summary="A hit is counted one block too long; that block holds what was left there.",
        opportunity="request whose hit is shorter than its prompt",
        start=("--blocks", "96"),
        shows="Prompts that continue a cached prefix by more than a block.",
        seen_in="vllm PR#43494, transformers PR#48509",
    ),
    Defect(
        slip=Slip.LAYER_MISSING,
        failure_class="G-GEOM",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="The last layer of a block does not come back from the host tier.",
        opportunity="request that finds blocks in the host tier",
        start=_HOST,
        shows="Prompts that are evicted and come again.",
        seen_in="sglang#38031, vllm#45699",
    ),
    Defect(
        slip=Slip.POSITION_SHIFT,
        failure_class="G-GEOM",
        channels=frozenset({Channel.DIFFERENTIAL}),
        summary="Blocks come back from the host tier shifted by one token, the first one twice.",
        opportunity="request that finds blocks in the host tier",
        start=_HOST,
        shows="Prompts that are evicted and come again.",
        seen_in="vLLM's ExampleConnector, which accepts shifted tensors",
    ),
    Defect(
        slip=Slip.TABLE_ROW_MIXED,
        failure_class="G-GEOM",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="One block a request attends to is read from the block table of its neighbour.",
        opportunity="request that gets its first token in a step with others",
        start=(),
        shows="Concurrent requests; cached_tokens stays 0 and nothing takes longer or shorter.",
        seen_in="vllm#55600, vllm#54359",
    ),
)
