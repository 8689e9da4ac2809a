"""Reported reuse against what the caller itself ever sent: an excess is somebody else's.

A cache can give a request at most the longest beginning that its own scope has sent before. This
holds for every request, whatever it was sent for, and needs no second arm.

Source: check M2 of the project's audit methods.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

_SEVERAL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request, and what was reported of it.

    Attributes:
        trial: Number of the trial in the history.
        owners: Scopes that the request belongs to, narrow to wide, for example conversation and
            tenant.
        words: What was sent, one word one token, without what was answered.
        answered: Words of the answer: they are cached behind the prompt.
        start_ns, end_ns: When it was sent, and when it ended.
        cached_tokens: None when the field is absent.
    """

    trial: int
    owners: tuple[Hashable, ...]
    words: Sequence[str]
    answered: Sequence[str]
    start_ns: int
    end_ns: int
    cached_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A request that was told of more reuse than its scopes can explain.

    Attributes:
        width: The widest scope that does not explain it: its place in `owners`.
        cached_tokens: As reported.
        explained: The longest beginning that this scope had sent.
    """

    trial: int
    width: int
    cached_tokens: int
    explained: int


def find_excess(sent: Iterable[Sent]) -> list[Excess]:
    """Return every request whose reported reuse its own history does not explain.

    What another request had not begun to send when this one ended cannot have helped it; all else
    of its own scope may have.
    """
    in_order = sorted(sent, key=lambda one: one.start_ns)
    lengths = sorted({one.cached_tokens for one in in_order if one.cached_tokens})
    known: dict[Hashable, dict[int, int]] = {}
    begun = 0
    found = []
    for one in sorted(in_order, key=lambda one: one.end_ns):
        while begun < len(in_order) and in_order[begun].start_ns < one.end_ns:
            _learn(known, in_order[begun], lengths)
            begun += 1
        if one.cached_tokens:
            beginnings = _beginnings(one.words, lengths)
            for width, owner in reversed(list(enumerate(one.owners))):
                explained = _explained(known.get(owner, {}), one.trial, beginnings)
                if one.cached_tokens > explained:
                    found.append(
                        Excess(
                            trial=one.trial,
                            width=width,
                            cached_tokens=one.cached_tokens,
                            explained=explained,
                        )
                    )
                    break
    return sorted(found, key=lambda excess: excess.trial)


def _explained(owned: dict[int, int], trial: int, beginnings: dict[int, int]) -> int:
    """Return the longest beginning that another request of the owner had sent."""
    return max(
        (length for length, name in beginnings.items() if owned.get(name, trial) != trial),
        default=0,
    )


def _learn(known: dict[Hashable, dict[int, int]], one: Sent, lengths: Sequence[int]) -> None:
    beginnings = _beginnings([*one.words, *one.answered], lengths)
    for owner in one.owners:
        owned = known.setdefault(owner, {})
        for name in beginnings.values():
            # Whose it was matters only as long as it was one request's alone.
            owned[name] = one.trial if owned.get(name, one.trial) == one.trial else _SEVERAL


def _beginnings(words: Sequence[str], lengths: Sequence[int]) -> dict[int, int]:
    """Return a name for the beginning of each of these lengths that the words have."""
    names = {}
    rolling = done = 0
    for length in lengths:
        if length > len(words):
            break
        rolling = hash((rolling, *words[done:length]))
        done = length
        names[length] = rolling
    return names
