"""L-INFLIGHT: a block is handed out again while a running request still reads it.

A block found in the prefix index has no holder yet, and the request does not become one. As long
as memory is plentiful nothing happens; under pressure the block is evicted like any other and
given to a new request, whose keys and values the first one then attends to. Seen as
use-after-free of prefix blocks under eviction, and where transfers outlive their owner.
"""

from __future__ import annotations

from dataclasses import replace

from kvward.lab.defects.registry import Defect
from kvward.terms import Channel

REUSE_IN_FLIGHT = Defect(
    name="reuse-in-flight",
    failure_class="L-INFLIGHT",
    expected_channels=frozenset({Channel.CONTENT}),
    summary="Blocks found in the prefix index are not held, and are evicted while in use.",
    plant=lambda behaviour: replace(behaviour, pin_hits=False),
)
