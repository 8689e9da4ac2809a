"""Reported reuse is explained by what the caller's own scopes have sent, or it is an excess."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvward.audit.detectors.history_excess import Excess, Sent, find_excess


def sent(trial: int, text: str, *, cached: int | None = 0, who: str = "a/1", **more: Any) -> Sent:
    values: dict[str, Any] = {
        "answered": (), "start_ns": 10 * trial, "end_ns": 10 * trial + 5,
        "owners": (who, who.partition("/")[0]),
    }  # fmt: skip
    return Sent(trial=trial, words=text.split(), cached_tokens=cached, **values | more)


def test_own_history_explains_as_much_as_it_has() -> None:
    assert not find_excess(
        [
            sent(1, "a b c d e f"),
            sent(2, "a b c d x y", cached=4),
            sent(3, "a b c d x y z", cached=6),
            sent(4, "q q", cached=None),
        ]
    )
    assert find_excess([sent(1, "a b c d e f"), sent(2, "a b c x e f", cached=4)]) == [
        Excess(trial=2, width=1, cached_tokens=4, explained=0)
    ]


def test_another_conversation_and_another_tenant_are_told_apart() -> None:
    history = [sent(1, "a b c d", who="a/1"), sent(2, "a b c d", cached=3, who="a/2")]
    assert [excess.width for excess in find_excess(history)] == [0]
    history = [sent(1, "a b c d", who="b/1"), sent(2, "a b c d", cached=3, who="a/1")]
    assert [excess.width for excess in find_excess(history)] == [1]


def test_one_request_does_not_explain_itself() -> None:
    assert find_excess([sent(1, "a b c d", cached=3)])


def test_equal_requests_at_once_explain_each_other() -> None:
    assert not find_excess(
        [
            sent(1, "a b c d", cached=3, start_ns=0, end_ns=100),
            sent(2, "a b c d", cached=3, start_ns=1, end_ns=90),
        ]
    )


def test_what_was_sent_after_the_end_explains_nothing() -> None:
    late = sent(2, "a b c d", start_ns=50, end_ns=60)
    assert find_excess([sent(1, "a b c d", cached=3, start_ns=0, end_ns=40), late])


def test_answers_are_kept_as_well() -> None:
    first = sent(1, "a b", answered=("c", "d"))
    assert not find_excess([first, sent(2, "a b c d e", cached=4)])
    assert find_excess([first, sent(2, "a b c x e", cached=4)])


def test_agrees_with_counting_every_beginning() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        history = [
            sent(
                trial,
                " ".join(random.choice(["x", "y"], int(random.integers(1, 7)))),
                cached=int(random.integers(0, 6)),
                who=f"{random.choice(['a', 'b'])}/{random.integers(2)}",
                start_ns=int(random.integers(100)),
                end_ns=int(random.integers(100, 120)),
            )
            for trial in range(12)
        ]
        wanted = {}
        for one in history:
            for width, owner in enumerate(one.owners):
                others = [
                    o for o in history
                    if o.trial != one.trial and owner in o.owners and o.start_ns < one.end_ns
                ]  # fmt: skip
                length = one.cached_tokens or 0
                if length and not any(
                    list(o.words[:length]) == list(one.words[:length]) and len(one.words) >= length
                    for o in others
                ):
                    wanted[one.trial] = width
        assert {excess.trial: excess.width for excess in find_excess(history)} == wanted
