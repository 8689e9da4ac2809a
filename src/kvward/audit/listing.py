"""What a side door's answer shows of words: its texts, as they may be kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from kvward.audit.history import Redactor

MAX_TEXTS = 64
"""Texts that are kept of one answer; what is planned for attribution counts as many."""
_MAX_WORDS = 4_096
_MAX_VALUES = 100_000
_MIN_NUMBERS = 8
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Words of an answer.

    Attributes:
        texts: Of each text that holds a code word its words, foreign ones redacted.
        num_unread: Lists of numbers, which may be prompts as token ids and were not read.
    """

    texts: tuple[str, ...]
    num_unread: int


NOTHING_LISTED = Listing(texts=(), num_unread=0)


def read_listing(body: bytes, redactor: Redactor) -> Listing:
    """Read the answer of a side door, JSON or any text. [untrusted]

    Each text value stands for itself, so that words of two requests are not taken for one's. Token
    ids are counted and not decoded: which text they stand for is the target's to know.
    """
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        value = body.decode("utf-8", "replace").splitlines()
    texts: list[str] = []
    num_unread = 0
    for entry in _iter_values(value):
        if isinstance(entry, list):
            num_unread += 1
        elif len(texts) < MAX_TEXTS:
            words = _WORD.findall(entry)[:_MAX_WORDS]
            if any(redactor.knows(word) for word in words):
                texts.append(" ".join(redactor.token(word) for word in words))
    return Listing(texts=tuple(texts), num_unread=num_unread)


def _iter_values(value: object) -> Iterator[str | list[object]]:
    """Yield every text, and every list of numbers as a whole."""
    waiting = [value]
    for _ in range(_MAX_VALUES):
        if not waiting:
            return
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting.extend(reversed(one.values()))
        elif isinstance(one, list):
            if len(one) >= _MIN_NUMBERS and all(isinstance(entry, int) for entry in one):
                yield one
            else:
                waiting.extend(reversed(one))
