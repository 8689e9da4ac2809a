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
)
