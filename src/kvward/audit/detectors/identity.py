"""Whose answer is this? Shared ids, streams of two answers, prompts of another size.

Source: checks M4 and M5 of the project's audit methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer's identity.

    Attributes:
        trial: Number of the trial.
        ids: Every distinct response id that the answer bore, in order. [untrusted]
        prompt_words: Words sent.
        prompt_tokens: As reported; None when the field is absent.
    """

    trial: int
    ids: Sequence[str]
    prompt_words: int
    prompt_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """An answer that is not, or not only, the request's own.

    Attributes:
        other: The trial whose id it bears; None where nobody's is.
    """

    trial: int
    other: int | None
    what: str


def find_shared_ids(answers: Iterable[Answered]) -> list[Confusion]:
    """Return answers that bear an id of an earlier answer, or more than one id.

    A server that gives every answer the same id, or none, tells nothing: an id that more than two
    answers bear is left out.
    """
    answers = list(answers)
    owners: dict[str, list[int]] = {}
    for answer in answers:
        for id_ in answer.ids:
            owners.setdefault(id_, []).append(answer.trial)
    found = []
    for answer in answers:
        for id_ in answer.ids:
            bearers = owners[id_]
            if len(bearers) == 2 and bearers[0] != answer.trial:
                found.append(
                    Confusion(trial=answer.trial, other=bearers[0], what="the id of another answer")
                )
        if len(answer.ids) > 1 and all(len(owners[id_]) == 1 for id_ in answer.ids):
            found.append(Confusion(trial=answer.trial, other=None, what="more than one id"))
    return found


def find_wrong_sizes(answers: Iterable[Answered]) -> list[Confusion]:
    """Return answers whose server counted another number of prompt tokens than it usually does.

    Only where nearly all prompts count the same number of tokens beyond their words.
    """
    beyond = {
        answer.trial: answer.prompt_tokens - answer.prompt_words
        for answer in answers
        if answer.prompt_tokens is not None
    }
    if not beyond:
        return []
    (usual, times), *_ = Counter(beyond.values()).most_common(1)
    if times < _USUAL_SHARE * len(beyond):
        return []
    return [
        Confusion(trial=trial, other=None, what=f"{more - usual:+d} prompt tokens")
        for trial, more in beyond.items()
        if more != usual
    ]


_USUAL_SHARE = 0.9
