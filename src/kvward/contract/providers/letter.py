"""The letter to a provider: what we read, and the questions that it leaves open."""

from __future__ import annotations

from kvward.contract.providers.questions import QUESTIONS, Question
from kvward.contract.providers.records import CLAUSE_TITLES, Confidence, Provider, Statement

_OPENING = (
    "your service keeps state that it computed for one request, so that later requests with the "
    "same beginning are answered sooner (prompt, prefix or context caching). We would like to "
    "write down for our own records what you promise about that state. We have looked for what "
    "you say in public about {covers}."
)
_PARAPHRASE = (
    "These are our words for your public statements, as of the days on which we read them; they "
    "may be out of date or incomplete, and your own text is what counts."
)
_REQUEST = (
    "We did not find answers to the following. One or two sentences for each, or a reference to a "
    "page, would help us; if you prefer not to answer one, please say so."
)
_CLOSING = (
    "May we keep your answers together with their date, and show them to those who rely on our "
    "service? Thank you for your time."
)
_TAIL = {
    Confidence.STATED: "",
    Confidence.IMPLIED: " We conclude this from the text; please correct us if it is not meant.",
    Confidence.SECOND_HAND: " We know this from others only; please confirm or correct it.",
}


def open_questions(provider: Provider) -> tuple[Question, ...]:
    """Return the questions that none of the provider's statements answers, in order of clauses."""
    answered = {answer for said in provider.statements.values() for answer in said.answers}
    return tuple(question for question in QUESTIONS if question.id not in answered)


def render_letter(provider: Provider) -> str:
    """Write the letter, in Markdown, with places for names.

    It quotes nothing. It asks only what is open.
    """
    questions = open_questions(provider)
    parts = [
        f"# Questions to {provider.title} about the isolation of prompt caches",
        "Dear Sir or Madam,",
        _OPENING.format(covers=provider.covers),
    ]
    said = [_said(statement) for statement in provider.statements.values() if statement.says]
    if said:
        parts += ["## How we understand you", "\n".join(said), _PARAPHRASE]
    if questions:
        parts += [
            "## What we ask you to tell us",
            _REQUEST,
            *_asked(questions),
        ]
    parts += [
        _CLOSING,
        "Yours faithfully,",
        "[name, organisation, address for the answer]",
    ]
    return "\n\n".join(parts) + "\n"


def _said(statement: Statement) -> str:
    assert statement.confidence is not None  # noqa: S101 - what says something has one
    cited = "; and ".join(source.cited for source in statement.sources)
    title = CLAUSE_TITLES[statement.clause]
    return (
        f"* **{title[0].upper()}{title[1:]}.** {statement.says}{_TAIL[statement.confidence]} "
        f"({cited})"
    )


def _asked(questions: tuple[Question, ...]) -> list[str]:
    parts = []
    number = 0
    for clause, title in CLAUSE_TITLES.items():
        lines = []
        for question in questions:
            if question.clause == clause:
                number += 1
                lines.append(f"{number}. {question.text}")
        if lines:
            parts += [f"### {title[0].upper()}{title[1:]}", "\n".join(lines)]
    return parts
