"""Defects of a block's life: read too early, too late, or by somebody it is not for.

These are races: nothing happens as long as memory is plentiful and requests come one by one.
"""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

_SMALL_POOL = ("--blocks", "96")

LIFETIME_DEFECTS = (
    Defect(
        slip=Slip.REUSE_IN_FLIGHT,
        failure_class="L-INFLIGHT",
        channels=frozenset({Channel.CONTENT}),
        summary="Blocks found in the prefix index are not held, and are evicted while in use.",
        opportunity="request that finds blocks in the prefix index",
        start=_SMALL_POOL,
        shows="Repeated prefixes among so many requests that memory is short.",
        seen_in="vllm#37076, sglang PR#28651",
    ),
    Defect(
        slip=Slip.EARLY_PUBLISH,
        failure_class="L-EARLY",
        channels=frozenset({Channel.CONTENT}),
        summary="The blocks of a prompt can be found as soon as they are allocated.",
        opportunity="request that has full blocks to compute",
        start=(),
        shows="Requests with one long prefix at the same time, or some that are cancelled.",
        seen_in="vllm PR#7822, sglang#38319",
    ),
)
