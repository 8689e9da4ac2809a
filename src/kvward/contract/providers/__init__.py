"""What inference providers state in public about their prompt caches, clause by clause.

Paraphrase of public text, read on the dates it carries. It says nothing about what a provider does,
and it may be out of date: `NOTICE` goes wherever it is shown.
"""

from __future__ import annotations

from kvward.contract.providers.comparison import (
    Side,
    compare_sides,
    render_markdown,
    render_text,
    side_of_provider,
)
from kvward.contract.providers.letter import open_questions, render_letter
from kvward.contract.providers.questions import QUESTIONS, Question
from kvward.contract.providers.reading import load_provider, load_providers, parse_provider
from kvward.contract.providers.records import (
    CLAUSES,
    NOTICE,
    Confidence,
    Facts,
    Form,
    Provider,
    SetBy,
    Source,
    Statement,
)

__all__ = [
    "CLAUSES",
    "NOTICE",
    "QUESTIONS",
    "Confidence",
    "Facts",
    "Form",
    "Provider",
    "Question",
    "SetBy",
    "Side",
    "Source",
    "Statement",
    "compare_sides",
    "load_provider",
    "load_providers",
    "open_questions",
    "parse_provider",
    "render_letter",
    "render_markdown",
    "render_text",
    "side_of_provider",
]
