"""Defects of erasure: it is reported, and state remains."""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

ERASURE_DEFECTS = (
    Defect(
        slip=Slip.ERASE_REPORTED_ONLY,
        failure_class="A-ERASE",
        channels=frozenset({Channel.METADATA, Channel.TIMING}),
        summary="Erasing counts what it finds and removes nothing.",
        opportunity="request to erase",
        start=(),
        shows="A prompt, POST /v1/cache/erase, and the same prompt; it hits.",
        seen_in="vllm#44939, UCM#737",
    ),
    Defect(
        slip=Slip.ERASE_SKIPS_OFFLOAD,
        failure_class="A-ERASE",
        channels=frozenset({Channel.METADATA, Channel.TIMING}),
        summary="Erasing leaves out the host tier.",
        opportunity=None,
        start=("--blocks", "96", "--host-blocks", "4096"),
        shows="A prompt that has left the engine's memory, erasing, and the same prompt; it hits.",
        seen_in="vllm#44939",
    ),
)
