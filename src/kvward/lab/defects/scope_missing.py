"""K-SCOPE: the scope does not enter the key.

The engine takes a salt and drops it on the way to the hash of the blocks, so that equal prompts of
two tenants share state. Seen where a tier, a connector or a router has a key function of its own:
in-process connectors that know tokens and model only, a salt that a refactoring no longer hands
on. Nothing looks wrong in the answers; usage counters and times tell.
"""

from __future__ import annotations

from dataclasses import replace

from kvward.lab.defects.registry import Defect
from kvward.terms import Channel

SCOPE_MISSING = Defect(
    name="scope-missing",
    failure_class="K-SCOPE",
    expected_channels=frozenset({Channel.METADATA, Channel.TIMING}),
    summary="The salt of a request does not enter the hash of its blocks.",
    plant=lambda behaviour: replace(behaviour, scope_in_key=False),
)
