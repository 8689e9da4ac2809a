"""Defects of the key: two requests that must not meet have one name for their state.

The engine computes right answers for whoever stored the state; it hands them to somebody else.
"""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

_ADAPTERS = ("--adapter", "ada=1", "--adapter", "bob=2")

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
        slip=Slip.SCOPE_MISSING_ROUTER,
        failure_class="K-SCOPE",
        channels=frozenset({Channel.METADATA, Channel.TIMING}),
        summary="The router knows prefixes without their salt, and says how much it knew.",
        opportunity=None,
        start=("--replicas", "2"),
        shows="The same prompt under two salts; both go to one replica, matched_tokens tells.",
        seen_in="llm-d-router#1389, sglang#24568",
    ),
    Defect(
        slip=Slip.SHORT_BLOCK_HASH,
        failure_class="K-HASH",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL, Channel.METADATA}),
        summary="A block is found by 16 bits of its hash, and its tokens are not compared.",
        opportunity=None,
        start=("--blocks", "2048"),
        shows="Many different prompts: of n cached blocks, n in 65,536 look-ups hit a wrong one.",
        seen_in="openvino.genai#3722, vllm#51875",
    ),
    Defect(
        slip=Slip.MODEL_MISSING_OFFLOAD,
        failure_class="K-SCOPE",
        channels=frozenset({Channel.METADATA, Channel.DIFFERENTIAL, Channel.TIMING}),
        summary="Names in the host tier leave out the model and its adapter.",
        opportunity=None,
        start=("--blocks", "96", "--host-blocks", "4096", *_ADAPTERS),
        shows="A prompt that has left the engine's memory comes again for another adapter.",
        seen_in="sglang PR#31920",
    ),
    Defect(
        slip=Slip.SALT_ADAPTER_AMBIGUOUS,
        failure_class="K-ENCODE",
        channels=frozenset({Channel.METADATA, Channel.DIFFERENTIAL, Channel.TIMING}),
        summary="Salt and adapter are joined without a border before they enter the key.",
        opportunity=None,
        start=_ADAPTERS,
        shows="The adapter without a salt, then the base with the adapter's name as its salt.",
        seen_in="vllm#44701, tinfoil PR#386",
    ),
    Defect(
        slip=Slip.ADAPTER_MISSING,
        failure_class="K-ADAPTER",
        channels=frozenset({Channel.METADATA, Channel.DIFFERENTIAL, Channel.TIMING}),
        summary="The adapter does not enter the key.",
        opportunity=None,
        start=_ADAPTERS,
        shows="The same prompt under the same salt for two adapters, or an adapter and the base.",
        seen_in="llm-d-kv-cache#189, vllm#30931",
    ),
    Defect(
        slip=Slip.ADAPTER_RELOAD_STALE,
        failure_class="K-ADAPTER",
        channels=frozenset({Channel.METADATA, Channel.DIFFERENTIAL, Channel.TIMING}),
        summary="The key has an adapter's name in place of its weights.",
        opportunity=None,
        start=(*_ADAPTERS, "--allow-updates"),
        shows="A prompt before and after the adapter is loaded again under the same name.",
        seen_in="vllm#42125, genlm-backend PR#65",
    ),
    Defect(
        slip=Slip.WEIGHTS_RELOAD_STALE,
        failure_class="K-STALE",
        channels=frozenset({Channel.METADATA, Channel.DIFFERENTIAL, Channel.TIMING}),
        summary="The key names the weights the engine was started with, whatever it has now.",
        opportunity=None,
        start=("--allow-updates",),
        shows="A prompt before and after other weights are loaded in place.",
        seen_in="lmdeploy#4917, open-r1#491, vllm#49261",
    ),
    Defect(
        slip=Slip.MEDIA_MISSING,
        failure_class="K-CONTENT",
        channels=frozenset(
            {Channel.CONTENT, Channel.METADATA, Channel.DIFFERENTIAL, Channel.TIMING}
        ),
        summary="A picture does not enter the key; its placeholders are those of any other.",
        opportunity=None,
        start=(),
        shows="The same text with two pictures of equal size under one salt.",
        seen_in="vllm-mlx#718, imp PR#1179, vllm#42119",
    ),
    Defect(
        slip=Slip.SHORT_MEDIA_DIGEST,
        failure_class="K-HASH",
        channels=frozenset({Channel.CONTENT, Channel.METADATA, Channel.DIFFERENTIAL}),
        summary="A picture enters the key with 16 bits of its digest.",
        opportunity=None,
        start=("--blocks", "4096"),
        shows="The same text with some 300 pictures, or two that were searched for.",
        seen_in="LMCache#3301, sglang#2151",
    ),
    Defect(
        slip=Slip.MEDIA_SHAPE_MISSING,
        failure_class="K-HASH",
        channels=frozenset(
            {Channel.CONTENT, Channel.METADATA, Channel.DIFFERENTIAL, Channel.TIMING}
        ),
        summary="A picture enters the key with its bytes, and without its width and height.",
        opportunity=None,
        start=(),
        shows="The same pixels as a picture of 4 by 8 and as one of 8 by 4.",
        seen_in="CVE-2025-46722",
    ),
    Defect(
        slip=Slip.SALT_FROM_CALLER,
        failure_class="K-ENCODE",
        channels=frozenset({Channel.METADATA, Channel.TIMING}),
        summary="A salt in the request takes the place of the scope that the API key gives.",
        opportunity=None,
        start=("--scope-by-key",),
        shows="Two API keys that send the same salt, or one that sends the other's.",
        seen_in="vllm PR#53347, MeetOnMemory#1068",
    ),
)
