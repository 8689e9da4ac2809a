"""Defects between engine and caller: a right answer reaches the wrong request."""

from __future__ import annotations

from kvward.lab.behaviour import Slip
from kvward.lab.defects.defect import Defect
from kvward.terms import Channel

_ANSWERS = ("--answers", "1000")

DELIVERY_DEFECTS = (
    Defect(
        slip=Slip.RESPONSE_CACHE_SHARED,
        failure_class="R-RESP",
        channels=frozenset({Channel.METADATA, Channel.TIMING}),
        summary="Whole answers are kept by the request alone, whoever asks.",
        opportunity=None,
        start=_ANSWERS,
        shows="The same greedy request under two salts; the second one gets the kept answer.",
        seen_in="OmniRoute#3740, litellm#19575",
    ),
    Defect(
        slip=Slip.RESPONSE_CACHE_TAIL,
        failure_class="R-RESP",
        channels=frozenset(
            {Channel.CONTENT, Channel.DIFFERENTIAL, Channel.TIMING, Channel.METADATA}
        ),
        summary="Whole answers are kept by the last 8 tokens of a prompt, whoever asks.",
        opportunity=None,
        start=_ANSWERS,
        shows="Greedy requests under two salts with other beginnings and the same end.",
        seen_in="SynapseKit#774, arXiv 2601.23088",
    ),
    Defect(
        slip=Slip.REQUEST_ID_RECYCLED,
        failure_class="S-ABA",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL, Channel.METADATA}),
        summary="A late token of a cancelled request goes to the one that has its place now.",
        opportunity="late token of a request whose client has left and whose place is taken again",
        start=(),
        shows="Clients that leave while others come.",
        seen_in="sglang#17259, vllm#42492",
    ),
    Defect(
        slip=Slip.STREAM_MIXED,
        failure_class="R-STREAM",
        channels=frozenset({Channel.CONTENT, Channel.DIFFERENTIAL}),
        summary="Two requests get each other's token.",
        opportunity="delivery of tokens of several requests at once",
        start=(),
        shows="Concurrent requests; cached_tokens and times are right.",
        seen_in="claude-code#29311, kilocode#14080",
    ),
)
