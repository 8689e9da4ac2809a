"""Defects of slots: a place keeps, gets or shows the state of somebody else."""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

_SLOTS = ("--no-prefix-cache", "--slots", "4")

SLOT_DEFECTS = (
    Defect(
        slip=Slip.SLOT_NOT_RESET,
        failure_class="S-SLOT",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="A request attends to what the one before it left in its slot.",
        opportunity="request that gets a slot with the state of another prompt",
        start=_SLOTS,
        shows="Different prompts one after another; cached_tokens says 0.",
        seen_in="llama.cpp#26676, llama.cpp PR#23970, ATLAS#87",
    ),
    Defect(
        slip=Slip.SLOT_MIXED,
        failure_class="S-SLOT",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="A request is restored from the state of another slot.",
        opportunity="request that is restored from its slot while another slot has a longer state",
        start=_SLOTS,
        shows="Conversations that go on, with several slots in use.",
        seen_in="llama.cpp#27422, tabbyAPI#107",
    ),
    Defect(
        slip=Slip.SLOT_STATE_UNVERIFIED,
        failure_class="A-TRUST",
        channels=frozenset(
            {Channel.CONTENT, Channel.METADATA, Channel.DIFFERENTIAL, Channel.TIMING}
        ),
        summary="A saved state is put back whoever saved it, and whatever was done to it.",
        opportunity=None,
        start=_SLOTS,
        shows="POST /slots to save, then to restore under another salt or with a bit changed.",
        seen_in="CVE-2025-10164, arXiv 2508.09442",
    ),
    Defect(
        slip=Slip.SLOTS_REVEAL_PROMPTS,
        failure_class="O-META",
        channels=frozenset({Channel.CONTENT, Channel.METADATA}),
        summary="The list of slots shows the prompts and answers of everybody.",
        opportunity=None,
        start=_SLOTS,
        shows="POST /slots to list after another salt has asked something.",
        seen_in="llama.cpp PR#9776",
    ),
)
