"""The letter asks what is open, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvward.contract.providers import (
    QUESTIONS,
    Provider,
    load_provider,
    load_providers,
    open_questions,
    render_letter,
)

PROVIDERS = load_providers()


@pytest.mark.parametrize("provider", PROVIDERS, ids=[provider.name for provider in PROVIDERS])
def test_only_open_questions_are_asked(provider: Provider) -> None:
    letter = render_letter(provider)
    still_open = open_questions(provider)
    for question in QUESTIONS:
        assert (question.text in letter) == (question in still_open)
    assert f"\n{len(still_open)}. {still_open[-1].text}\n" in letter
    assert f"\n{len(still_open) + 1}. " not in letter


@pytest.mark.parametrize("provider", PROVIDERS, ids=[provider.name for provider in PROVIDERS])
def test_what_is_stated_is_cited_and_not_quoted(provider: Provider) -> None:
    letter = render_letter(provider)
    for said in provider.statements.values():
        if said.says is not None:
            assert said.says in letter
            assert all(source.cited in letter for source in said.sources)
    assert ("your own text is what counts" in letter) == bool(provider.sources)
    assert not any(mark in letter for mark in ('"', "“", "”", "\n> "))


def test_what_we_only_heard_is_asked_to_be_confirmed() -> None:
    assert "from others only" in render_letter(load_provider("moonshot"))
    assert "correct us" in render_letter(load_provider("openai"))


def test_a_provider_that_answered_everything_is_asked_nothing() -> None:
    provider = load_provider("openai")
    answers = {
        clause: replace(
            said,
            answers=tuple(question.id for question in QUESTIONS if question.clause == clause),
        )
        for clause, said in provider.statements.items()
    }
    letter = render_letter(replace(provider, statements=answers))
    assert "What we ask you" not in letter
    assert "1. " not in letter
