"""L-EARLY: a prefix can be found before all its layers are written.

The full blocks of a prompt enter the index when they are allocated. A long prompt is written over
several steps; another request with the same prefix that arrives in between finds the blocks and
attends to what their last owner left there. A prompt that is cancelled before it was written
leaves such blocks behind. Seen as same-step visibility of prefix blocks, as an index insert that
races with chunked prefill, and as readers that do not wait for a load.
"""

from __future__ import annotations

from dataclasses import replace

from kvward.lab.defects.registry import Defect
from kvward.terms import Channel

EARLY_PUBLISH = Defect(
    name="early-publish",
    failure_class="L-EARLY",
    expected_channels=frozenset({Channel.CONTENT}),
    summary="The blocks of a prompt can be found as soon as they are allocated.",
    plant=lambda behaviour: replace(behaviour, publish_when_written=False),
)
