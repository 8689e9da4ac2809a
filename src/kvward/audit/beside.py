"""Trials of requests beside the prompts: what goes into the history of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.listing import NOTHING_LISTED, Listing
from kvward.audit.target.side import SideAnswer, SideRequest

Record = Callable[[Trial], None]
"""Numbers a trial and writes it down."""


class Askable(Protocol):
    """What is asked: an open target."""

    async def ask(
        self, tenant: str, request: SideRequest, *, conversation: str, replica: int = 0
    ) -> SideAnswer:
        """Send one request that is no prompt."""


def side_trial(
    arm: Arm,
    answer: SideAnswer,
    *,
    tenant: str,
    conversation: str,
    name: str,
    replica: int | None,
    listing: Listing = NOTHING_LISTED,
) -> Trial:
    """Return the trial of a request that is no prompt, without its number.

    A refusal is an answer: that the target does no such thing for this caller.

    Args:
        name: What was asked, for example "slots"; stands where a prompt's recipe would.
        replica: None where there is one address.
    """
    answered = answer.status == 200 or answer.is_refusal
    return Trial(
        number=0,
        arm=arm,
        tenant=tenant,
        conversation=conversation,
        prompt=f"{arm.value}:{name}",
        prompt_words=0,
        own_words=(),
        ending=Ending.DONE if answered else Ending.FAILED,
        status=answer.status,
        start_ns=answer.start_ns,
        ttft_ns=None,
        total_ns=answer.total_ns,
        text="",
        top_logprobs=(),
        prompt_tokens=None,
        completion_tokens=None,
        cached_tokens=None,
        response_ids=(),
        error=None if answered else answer.error,
        replica=replica,
        listed=listing.texts,
        unread_lists=listing.num_unread,
    )
