"""Defects of a block's life: read too early, too late, or by somebody it is not for.

These are races: nothing happens as long as memory is plentiful and requests come one by one.
"""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

_SMALL_POOL = ("--blocks", "96")
_HOST = (*_SMALL_POOL, "--host-blocks", "4096")
_SLOW_HOST = (*_HOST, "--host-steps", "6")

LIFETIME_DEFECTS = (
    Defect(
        slip=Slip.REUSE_IN_FLIGHT,
        failure_class="L-INFLIGHT",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="Blocks found in the prefix index are not held, and are evicted while in use.",
        opportunity="request that finds blocks in the prefix index",
        start=_SMALL_POOL,
        shows="Repeated prefixes among so many requests that memory is short.",
        seen_in="vllm#37076, sglang PR#28651",
    ),
    Defect(
        slip=Slip.EARLY_PUBLISH,
        failure_class="L-EARLY",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="The blocks of a prompt can be found as soon as they are allocated.",
        opportunity="request that has full blocks to compute",
        start=(),
        shows="Requests with one long prefix at the same time, or some that are cancelled.",
        seen_in="vllm PR#7822, sglang#38319",
    ),
    Defect(
        slip=Slip.CANCEL_IN_FLIGHT,
        failure_class="L-INFLIGHT",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="A cancelled request's blocks are handed out while a copy to them is on its way.",
        opportunity="request that ends or is preempted while a copy to its blocks is on its way",
        start=_SLOW_HOST,
        shows="Prompts that come back from the host tier, clients that leave at once, and others.",
        seen_in="sglang#24527, sglang PR#36738",
    ),
    Defect(
        slip=Slip.LATE_OFFLOAD,
        failure_class="L-INFLIGHT",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="An evicted block is read for the host tier after its next owner wrote to it.",
        opportunity="block that is evicted to the host tier",
        start=_HOST,
        shows="Prompts that are evicted under pressure and come again.",
        seen_in="vllm#52360, vllm PR#29870",
    ),
    Defect(
        slip=Slip.READ_BEFORE_READY,
        failure_class="L-EARLY",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="A request is computed while blocks of its prefix are still on their way.",
        opportunity="request that waits for blocks from the host tier",
        start=_SLOW_HOST,
        shows="Prompts that are evicted and come again, among others.",
        seen_in="sglang PR#22811, sglang PR#38217",
    ),
    Defect(
        slip=Slip.PHANTOM_HIT,
        failure_class="L-ALLOC",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL, Channel.METADATA}),
        summary="An evicted block can still be found under its old name.",
        opportunity="block that is evicted",
        start=_SMALL_POOL,
        shows="Prompts that come again after their blocks have gone to other requests.",
        seen_in="imp PR#1044, Mooncake#4239",
    ),
    Defect(
        slip=Slip.DOUBLE_OWNERSHIP,
        failure_class="L-ALLOC",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="A block that another request still holds becomes free when one holder leaves.",
        opportunity="block that is given back while another request holds it, too",
        start=_SMALL_POOL,
        shows="Requests with one prefix at the same time, among others.",
        seen_in="imp PR#1044, sglang#23392, LMCache#1858",
    ),
)
