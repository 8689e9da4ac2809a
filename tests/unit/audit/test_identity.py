"""Answers that are another's, by their ids and by the size of their prompt."""

from __future__ import annotations

from kvward.audit.detectors.identity import Answered, Confusion, find_shared_ids, find_wrong_sizes


def answered(trial: int, *ids: str, tokens: int | None = 10) -> Answered:
    return Answered(trial=trial, ids=ids, prompt_words=10, prompt_tokens=tokens)


def test_an_id_that_two_answers_bear() -> None:
    found = find_shared_ids([answered(1, "x"), answered(2, "y"), answered(3, "x")])
    assert found == [Confusion(trial=3, other=1, what="the id of another answer")]


def test_a_stream_with_a_chunk_of_another() -> None:
    found = find_shared_ids([answered(1, "x"), answered(2, "y", "x"), answered(3, "z")])
    assert found == [Confusion(trial=2, other=1, what="the id of another answer")]
    found = find_shared_ids([answered(1, "x", "y"), answered(2, "z")])
    assert found == [Confusion(trial=1, other=None, what="more than one id")]


def test_servers_without_ids_tell_nothing() -> None:
    assert not find_shared_ids([answered(n, "same") for n in range(5)])
    assert not find_shared_ids([answered(n) for n in range(5)])
    assert not find_shared_ids([answered(n, str(n)) for n in range(5)])


def test_a_prompt_of_another_size() -> None:
    answers = [answered(n, tokens=13) for n in range(20)] + [answered(20, tokens=29)]
    assert find_wrong_sizes(answers) == [Confusion(trial=20, other=None, what="+16 prompt tokens")]
    assert not find_wrong_sizes([answered(n, tokens=None) for n in range(20)])
    # Real tokenizers count words differently: there is no usual number.
    assert not find_wrong_sizes([answered(n, tokens=10 + n % 5) for n in range(20)])
