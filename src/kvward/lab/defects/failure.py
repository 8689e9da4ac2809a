"""Defects of the path that is taken when something failed: it is served all the same."""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

_FAULTS = ("--blocks", "96", "--host-blocks", "256", "--host-fault-rate", "0.05")

FAILURE_DEFECTS = (
    Defect(
        slip=Slip.TORN_WRITE_SERVED,
        failure_class="E-OPEN",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="An entry of the host tier that was written by half is served.",
        opportunity="read of an entry whose write had stopped halfway",
        start=_FAULTS,
        shows="Prompts that are evicted and come again.",
        seen_in="Mooncake#3066, LMCache's local_disk_backend",
    ),
    Defect(
        slip=Slip.FAILED_LOAD_SERVED,
        failure_class="E-OPEN",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="A block that could not be read from the host tier counts as restored.",
        opportunity="read from the host tier that fails",
        start=_FAULTS,
        shows="Prompts that are evicted and come again.",
        seen_in="LMCache#3022, vllm#52234",
    ),
)
