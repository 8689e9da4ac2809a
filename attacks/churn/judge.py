"""Reads answers: foreign words, own words that are missing, and answers that changed.

It knows the words of the sessions and the prompts, and nothing of the server.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from attacks.churn.plan import Order
from kvward.audit.canary.codebook import Session
from kvward.audit.canary.words import WORDS
from kvward.audit.detectors.content import attribute, read_foreign_words
from kvward.audit.exchange import Ending, Reply
from kvward.audit.history import Redactor
from kvward.audit.sessions import relation

TOLERANCE_NATS = 1e-3
TOLERANCE_RATIO = 1e-5
"""How far two answers to one prompt may lie apart, computed in different batches: so many nats, or
this part of the largest value of the position, whichever is more.

What is allowed is rounding in float32 alone, where sums of attention depend on their order. A sum
of n terms is off by about sqrt(n) / 2 units of 1.2e-7, so by 5e-6 of its value at 8,000 terms. On
the canary model a position's values reach down to about -7,000, where the number itself has steps
of 5e-4. What state can do is far more: one slot more or less of a word among n moves its logit by
more than 2,400 / n nats, so by 1.6 nats at 1,500 tokens, where 0.07 are allowed.
"""
_ABOVE_FLOOR_NATS = 0.05  # as in the detector; the smallest step above the floor is 0.3 nat
_KEPT_ANSWERS = 2048
_KEPT_FINDINGS = 200
_COUNTED = (
    "requests",
    "answered",
    "answered_streaming",
    "answered_whole",
    "answers_with_usage",
    "answers_reusing",
    "cached_tokens",
    "prompt_tokens",
    "completion_tokens",
    "cancelled",
    "cancelled_before_first_token",
    "cancelled_after_first_token",
    "refused",
    "failed",
    "repeats_compared",
    "unreadable",
)
_CODE_WORDS = frozenset(WORDS)
_PLAIN = Redactor(_CODE_WORDS)  # tokens come with the white space around them

Position = Sequence[tuple[str, float]]


class Kind(StrEnum):
    """What can be wrong."""

    FOREIGN_WORDS = "foreign-words"
    OWN_WORDS_MISSING = "own-words-missing"
    ANSWER_DIFFERS = "answer-differs"
    ANSWER_SHORT = "answer-short"
    SERVER_ERROR = "server-error"
    BROKEN_STREAM = "broken-stream"
    HANG = "hang"
    ENGINE_DIED = "engine-died"
    MEMORY_GREW = "memory-grew"
    BLOCKS_LEAKED = "blocks-leaked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A session whose words an answer shows, and how the reader stands to it (S0, S2, S3)."""

    tenant: str
    conversation: str
    relation: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is wrong. `request` is None for what no single request shows."""

    kind: Kind
    detail: str
    request: int | None = None
    tenant: str | None = None
    conversation: str | None = None
    move: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    words: tuple[str, ...] = ()
    owners: tuple[Owner, ...] = ()


class Difference(NamedTuple):
    """Where two answers to one prompt part, and by how much."""

    position: int
    nats: float


@dataclass(frozen=True, slots=True)
class _Answer:
    request: int
    words: tuple[str, ...]
    values: tuple[dict[str, float], ...]  # of each position, own words and the floor only


class Judge:
    """Judges every reply, and counts.

    Args:
        sessions: Everybody who takes part, to say whose foreign words are.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions
        self._answers: OrderedDict[tuple[str, ...], _Answer] = OrderedDict()
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self.errors: Counter[str] = Counter()
        self.kinds: Counter[Kind] = Counter()
        self.findings: list[Finding] = []
        self.largest_difference_ratio = 0.0

    def take(self, number: int, order: Order, reply: Reply) -> None:
        """Judge one reply. What came of a cancelled one is read, too."""
        reply = replace(
            reply, text=_PLAIN.text(reply.text), top_logprobs=_PLAIN.top_logprobs(reply)
        )
        self.counts["requests"] += 1
        self.counts[f"move:{order.move}"] += 1
        match reply.ending:
            case Ending.FAILED:
                self._take_failure(number, order, reply)
            case Ending.CANCELLED:
                self._count_cancel(order, reply)
            case Ending.DONE:
                self._count_answer(order, reply)
        if reply.ending is Ending.DONE or reply.top_logprobs:
            self._read(number, order, reply)
        if reply.ending is Ending.DONE:
            self._check_length(number, order, reply)
            self._compare(number, order, reply)

    def blame(self, finding: Finding) -> None:
        """Record a finding; the first ones are kept whole, all are counted."""
        self.kinds[finding.kind] += 1
        if len(self.findings) < _KEPT_FINDINGS:
            self.findings.append(finding)

    def _take_failure(self, number: int, order: Order, reply: Reply) -> None:
        error = reply.error or "unknown"
        refused = reply.status is not None and 400 <= reply.status < 500
        self.counts["refused" if refused else "failed"] += 1
        if refused:
            self.errors[error] += 1
            return
        if error == "timeout":
            kind = Kind.HANG
        elif reply.status is not None and reply.status >= 500:
            kind = Kind.SERVER_ERROR
        else:
            # What the server says in a broken stream may hold anything; it is not repeated.
            kind = Kind.BROKEN_STREAM if reply.status is not None else Kind.SERVER_ERROR
        self.errors[error if kind is not Kind.BROKEN_STREAM else "broken stream"] += 1
        detail = error if kind is not Kind.BROKEN_STREAM else "an answer that had begun broke off"
        self._blame(kind, detail, number, order, reply)

    def _count_cancel(self, order: Order, reply: Reply) -> None:
        self.counts["cancelled"] += 1
        if order.leave is not None:
            self.counts[f"cancelled:{order.leave.moment}"] += 1
        seen = "after" if reply.ttft_ns is not None else "before"
        self.counts[f"cancelled_{seen}_first_token"] += 1

    def _count_answer(self, order: Order, reply: Reply) -> None:
        self.counts["answered"] += 1
        self.counts[f"answered:{order.session.tenant}"] += 1
        self.counts["answered_streaming" if order.streams else "answered_whole"] += 1
        self.counts["answers_with_usage"] += reply.cached_tokens is not None
        self.counts["answers_reusing"] += bool(reply.cached_tokens)
        self.counts["cached_tokens"] += reply.cached_tokens or 0
        self.counts["prompt_tokens"] += reply.prompt_tokens or 0
        self.counts["completion_tokens"] += reply.completion_tokens or 0

    def _read(self, number: int, order: Order, reply: Reply) -> None:
        own = order.prompt.own_words
        reading = read_foreign_words(reply.top_logprobs, reply.text, own_words=own)
        if reading.foreign:
            self._blame_foreign(number, order, reply, reading.foreign)
        missing = find_missing_words(reply.top_logprobs, own)
        if missing:
            detail = f"{len(missing)} of {len(own)} own words do not stand above the floor"
            self._blame(Kind.OWN_WORDS_MISSING, detail, number, order, reply, words=missing)
        elif not reading.measurable and not reading.foreign:
            self.counts["unreadable"] += 1
        if reply.prompt_tokens not in (None, len(order.prompt.words)):
            self.counts["unreadable"] += 1  # not the canary model: a word is not a token

    def _blame_foreign(
        self, number: int, order: Order, reply: Reply, foreign: frozenset[str]
    ) -> None:
        # How often chance is asked: for every finding that is kept, of every session.
        comparisons = _KEPT_FINDINGS * len(self._sessions)
        owners = tuple(
            Owner(
                tenant=found.session.tenant,
                conversation=found.session.conversation,
                relation=str(relation(order.session, found.session)),
                words=found.words,
            )
            for found in attribute(foreign, self._sessions, num_comparisons=comparisons)
        )
        detail = f"{len(foreign)} words that the prompt does not hold"
        words = tuple(sorted(foreign))
        self._blame(Kind.FOREIGN_WORDS, detail, number, order, reply, words=words, owners=owners)

    def _check_length(self, number: int, order: Order, reply: Reply) -> None:
        tokens = max(len(reply.top_logprobs), reply.completion_tokens or 0)
        if tokens < order.max_tokens:
            detail = f"{tokens} of {order.max_tokens} tokens"
            self._blame(Kind.ANSWER_SHORT, detail, number, order, reply)

    def _compare(self, number: int, order: Order, reply: Reply) -> None:
        answer = _Answer(
            number,
            tuple(reply.text.split()),
            tuple(_values_of_own(p, order.prompt.own_words) for p in reply.top_logprobs),
        )
        # The same words of another session are the same prompt, and have the same answer.
        earlier = self._answers.get(order.prompt.words)
        if earlier is not None:
            self.counts["repeats_compared"] += 1
            difference, largest = compare_answers(earlier, answer)
            self.largest_difference_ratio = max(self.largest_difference_ratio, largest)
            if difference is not None:
                detail = (
                    f"at token {difference.position + 1} it is {difference.nats:.3g} nat away from "
                    f"the answer of request {earlier.request} to the same prompt"
                )
                self._blame(Kind.ANSWER_DIFFERS, detail, number, order, reply)
        if earlier is None or len(earlier.values) < len(answer.values):
            self._answers[order.prompt.words] = answer
        self._answers.move_to_end(order.prompt.words)
        while len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)

    def _blame(
        self,
        kind: Kind,
        detail: str,
        number: int,
        order: Order,
        reply: Reply,
        *,
        words: tuple[str, ...] = (),
        owners: tuple[Owner, ...] = (),
    ) -> None:
        self.blame(
            Finding(
                kind=kind,
                detail=detail,
                request=number,
                tenant=order.session.tenant,
                conversation=order.session.conversation,
                move=str(order.move),
                prompt_tokens=len(order.prompt.words),
                cached_tokens=reply.cached_tokens,
                words=words,
                owners=owners,
            )
        )


def find_missing_words(positions: Sequence[Position], own: frozenset[str]) -> tuple[str, ...]:
    """Return the own words that some position does not show above its floor. [untrusted]"""
    missing: set[str] = set()
    for position in positions:
        values = {word: value for word, value in position if word in _CODE_WORDS}
        floor = min(values.values(), default=0.0)
        missing |= {word for word in own if values.get(word, floor) <= floor + _ABOVE_FLOOR_NATS}
    return tuple(sorted(missing))


def compare_answers(first: _Answer, second: _Answer) -> tuple[Difference | None, float]:
    """Compare two answers to one prompt, as far as both go.

    After a token in which they may differ, because the two likeliest words are as good as tied,
    their contexts are no longer the same, and nothing more is compared.

    Returns:
        The first difference beyond the tolerance, if there is one, and the largest difference
        that was seen up to there, as a multiple of the tolerance.
    """
    largest = 0.0
    for number, (one, two) in enumerate(zip(first.values, second.values, strict=False)):
        apart = max((abs(one[word] - two[word]) for word in one.keys() & two.keys()), default=0.0)
        allowed = max(_tolerance_nats(one), _tolerance_nats(two))
        largest = max(largest, apart / allowed)
        if apart > allowed:
            return Difference(number, apart), largest
        if _is_tied(one) or _is_tied(two):
            return None, largest
        said = {words[number] for words in (first.words, second.words) if number < len(words)}
        if len(said) > 1 and said <= _CODE_WORDS:  # some servers run tokens together
            return Difference(number, apart), largest
    return None, largest


def _tolerance_nats(values: dict[str, float]) -> float:
    return max(TOLERANCE_NATS, TOLERANCE_RATIO * max(map(abs, values.values()), default=0.0))


def _is_tied(values: dict[str, float]) -> bool:
    top = sorted(values.values(), reverse=True)[:2]
    return len(top) == 2 and top[0] - top[1] <= _tolerance_nats(values)


def _values_of_own(position: Position, own: frozenset[str]) -> dict[str, float]:
    values = {word: value for word, value in position if word in own}
    floor = [value for word, value in position if word in _CODE_WORDS and word not in own]
    return values | ({"": min(floor)} if floor else {})
