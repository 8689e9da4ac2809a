"""The judge of a churn run, on what it must find and on what it must not."""

from collections.abc import Sequence

import pytest
from attacks.churn.judge import Judge, Kind, find_missing_words
from attacks.churn.plan import Leave, Moment, Move, Order
from attacks.churn.prompts import ChurnPrompt

from kvward.audit.canary.codebook import Codebook
from kvward.audit.canary.words import WORDS
from kvward.audit.exchange import Ending, Reply

BOOK = Codebook(seed=3)
MINE = BOOK.session(tenant="a", conversation="c1")
OTHER = BOOK.session(tenant="b", conversation="c1")
SESSIONS = (MINE, OTHER, BOOK.session(tenant="a", conversation="c2"))
OWN = MINE.canary[:4]
FOREIGN = tuple(word for word in OTHER.canary if word not in OWN)
FLOOR = -300.0

Position = tuple[tuple[str, float], ...]


def position(own: Sequence[str] = OWN, others: Sequence[str] = (), *, add: float = 0.0) -> Position:
    shown = {word: -10.0 * i + (add if i else 0.0) for i, word in enumerate(own)}
    shown |= dict.fromkeys(others, FLOOR + 40.0)
    absent = [word for word in WORDS if word not in shown][: 20 - len(shown)]
    values = shown | dict.fromkeys(absent, FLOOR)
    # As servers send them: with the space before the word.
    return tuple((" " + word, value) for word, value in values.items())


def order(max_tokens: int = 1, *, leave: Leave | None = None) -> Order:
    return Order(
        move=Move.FRESH,
        session=MINE,
        prompt=ChurnPrompt(words=(*OWN, *OWN), ranking=OWN),
        max_tokens=max_tokens,
        streams=True,
        leave=leave,
    )


def reply(
    *positions: Position,
    ending: Ending = Ending.DONE,
    status: int | None = 200,
    error: str | None = None,
    text: str | None = None,
    prompt_tokens: int = 8,
) -> Reply:
    return Reply(
        ending=ending,
        status=status,
        start_ns=0,
        ttft_ns=1 if positions else None,
        total_ns=2,
        text=" ".join([OWN[0]] * len(positions)) if text is None else text,
        top_logprobs=positions,
        prompt_tokens=prompt_tokens if ending is Ending.DONE else None,
        completion_tokens=len(positions),
        cached_tokens=0,
        error=error,
    )


def judge(*replies: Reply, max_tokens: int = 1, leave: Leave | None = None) -> Judge:
    result = Judge(SESSIONS)
    for number, one in enumerate(replies):
        result.take(number, order(max_tokens, leave=leave), one)
    return result


def test_answers_of_own_words_are_clean() -> None:
    done = judge(reply(position(), position()), reply(position(), position()), max_tokens=2)
    assert not done.findings
    assert done.counts["answered"] == done.counts["answered:a"] == 2
    assert done.counts["repeats_compared"] == 1
    assert done.counts["unreadable"] == 0


def test_foreign_words_are_found_and_named_with_their_tenant() -> None:
    done = judge(reply(position(others=FOREIGN[:8])))
    (finding,) = done.findings
    assert finding.kind is Kind.FOREIGN_WORDS
    assert (finding.request, finding.tenant, finding.conversation) == (0, "a", "c1")
    assert finding.words == tuple(sorted(FOREIGN[:8]))
    (owner,) = finding.owners
    assert (owner.tenant, owner.conversation, owner.relation) == ("b", "c1", "S3")
    assert set(owner.words) == set(FOREIGN[:8])


def test_one_foreign_word_is_found_and_accuses_nobody() -> None:
    (finding,) = judge(reply(position(others=FOREIGN[:1]))).findings
    assert finding.kind is Kind.FOREIGN_WORDS
    assert finding.owners == ()


def test_a_foreign_word_in_the_text_alone_is_found() -> None:
    done = judge(reply(position(), text=" " + FOREIGN[0]))
    assert done.kinds == {Kind.FOREIGN_WORDS: 1}


def test_own_words_of_another_prompt_are_foreign_to_this_one() -> None:
    done = judge(reply(position(others=MINE.canary[4:12])))
    assert done.findings[0].owners[0].relation == "S0"


def test_what_a_cancelled_request_showed_is_read() -> None:
    leave = Leave(moment=Moment.MID_STREAM, patience=0.0, parts=1)
    shown = reply(position(others=FOREIGN[:8]), ending=Ending.CANCELLED)
    silent = reply(ending=Ending.CANCELLED, status=None)
    done = judge(shown, silent, max_tokens=5, leave=leave)
    assert done.kinds == {Kind.FOREIGN_WORDS: 1}
    assert done.counts["cancelled"] == done.counts["cancelled:mid-stream"] == 2
    assert done.counts["cancelled_after_first_token"] == 1
    assert done.counts["cancelled_before_first_token"] == 1
    assert done.counts["answered"] == 0


def test_missing_own_words_are_found() -> None:
    (finding,) = judge(reply(position(OWN[:3]))).findings
    assert finding.kind is Kind.OWN_WORDS_MISSING
    assert finding.words == (OWN[3],)


def test_missing_words_are_looked_for_in_every_position() -> None:
    plain = [tuple((w.strip(), v) for w, v in p) for p in (position(), position(OWN[:2]))]
    assert find_missing_words(plain, frozenset(OWN)) == tuple(sorted(OWN[2:]))
    assert find_missing_words(plain[:1], frozenset(OWN)) == ()


def test_an_answer_without_logprobs_is_unreadable_and_not_clean() -> None:
    silent = reply(position())
    done = Judge(SESSIONS)
    bare = Reply(
        ending=Ending.DONE,
        status=200,
        start_ns=0,
        ttft_ns=1,
        total_ns=2,
        text=silent.text,
        completion_tokens=1,
    )
    done.take(0, order(), bare)
    assert not done.findings
    assert done.counts["unreadable"] == 1


def test_a_tokenizer_with_other_tokens_makes_it_unreadable() -> None:
    assert judge(reply(position(), prompt_tokens=11)).counts["unreadable"] == 1


@pytest.mark.parametrize(("add", "differs"), [(0.0, False), (0.0029, False), (0.0031, True)])
def test_a_repeat_may_differ_by_rounding_and_no_more(add: float, *, differs: bool) -> None:
    # Values reach down to -300, so 1e-5 of it is what rounding may do.
    done = judge(reply(position()), reply(position(add=add)))
    assert done.kinds == ({Kind.ANSWER_DIFFERS: 1} if differs else {})


def test_a_repeat_with_another_token_differs() -> None:
    swapped = reply(position(), text=OWN[1])
    done = judge(reply(position()), swapped)
    assert done.kinds == {Kind.ANSWER_DIFFERS: 1}


def test_a_text_without_spaces_is_not_compared_word_by_word() -> None:
    first = reply(position(), text=OWN[0])
    second = reply(position(), position(), text=OWN[0] + OWN[0])
    assert not judge(first, second).findings


def test_after_a_tie_repeats_may_part() -> None:
    tied = tuple((w, 0.0 if i < 2 else v) for i, (w, v) in enumerate(position()))
    first = reply(tied, position(), text=f"{OWN[0]} {OWN[0]}")
    second = reply(tied, position(add=5.0), text=f"{OWN[1]} {OWN[1]}")
    assert not judge(first, second, max_tokens=2).findings


def test_a_longer_repeat_is_compared_as_far_as_both_go() -> None:
    done = judge(reply(position()), reply(position(), position(add=1.0)), max_tokens=1)
    assert not done.findings
    done.take(9, order(2), reply(position(), position(add=2.0)))
    assert done.kinds == {Kind.ANSWER_DIFFERS: 1}
    assert "request 1 " in done.findings[0].detail


def test_an_answer_that_ends_early_is_found() -> None:
    assert judge(reply(position()), max_tokens=2).kinds == {Kind.ANSWER_SHORT: 1}


@pytest.mark.parametrize(
    ("status", "error", "kind", "counted"),
    [
        (503, "HTTP 503", Kind.SERVER_ERROR, "HTTP 503"),
        (None, "timeout", Kind.HANG, "timeout"),
        (200, "timeout", Kind.HANG, "timeout"),
        (None, "ServerDisconnectedError", Kind.SERVER_ERROR, "ServerDisconnectedError"),
        (200, "stream ended early", Kind.BROKEN_STREAM, "broken stream"),
        (200, "somebody's words", Kind.BROKEN_STREAM, "broken stream"),
    ],
)
def test_failures_are_findings_by_class(
    status: int | None, error: str, kind: Kind, counted: str
) -> None:
    done = judge(reply(ending=Ending.FAILED, status=status, error=error))
    assert done.kinds == {kind: 1}
    assert done.errors == {counted: 1}
    assert "somebody" not in str(done.findings)


def test_a_refusal_is_counted_and_is_no_failure() -> None:
    done = judge(reply(ending=Ending.FAILED, status=429, error="HTTP 429"))
    assert not done.findings
    assert done.errors == {"HTTP 429": 1}
    assert done.counts["refused"] == 1


def test_findings_are_kept_up_to_a_bound_and_counted_beyond() -> None:
    done = judge(*[reply(position(OWN[:3]))] * 300)
    assert done.kinds[Kind.OWN_WORDS_MISSING] == 300
    assert len(done.findings) == 200
