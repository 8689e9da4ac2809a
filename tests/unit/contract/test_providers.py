"""What is recorded about providers: complete, dated, and read strictly."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.resources import files

import pytest

from kvward.contract.providers import (
    CLAUSES,
    QUESTIONS,
    Confidence,
    Form,
    Provider,
    SetBy,
    load_provider,
    load_providers,
    open_questions,
    parse_provider,
)
from kvward.contract.providers.records import CLAUSE_TITLES
from kvward.errors import ConfigError, UsageError

PROVIDERS = load_providers()
NAMES = [provider.name for provider in PROVIDERS]
GOOD = """\
title = "Example"
covers = "its cache"

[facts]
set_by = "provider"
dimensions = ["account"]
not_stated = ["lifetime", "tiers", "controls", "erasure"]

[sources.guide]
title = "Guide"
publisher = "Example"
page = "documentation"
form = "page"
read = "2026-12-03"

[clauses.scope]
says = "Accounts share nothing."
sources = ["guide"]
confidence = "stated"
answers = ["scope.boundary"]
""" + "".join(f"\n[clauses.{clause}]\nunanswered = true\n" for clause in CLAUSES[1:])


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) >= 1
    return GOOD.replace(old, new, 1)


@pytest.mark.parametrize("provider", PROVIDERS, ids=NAMES)
def test_every_clause_is_answered_or_listed_as_unanswered(provider: Provider) -> None:
    assert tuple(provider.statements) == CLAUSES
    for clause, said in provider.statements.items():
        assert (said.says is None) == (clause in provider.unanswered)
        assert (said.says is None) == (said.confidence is None) == (not said.sources)


@pytest.mark.parametrize("provider", PROVIDERS, ids=NAMES)
def test_no_source_was_read_in_the_future(provider: Provider) -> None:
    today = datetime.now(UTC).date()
    for source in provider.sources:
        assert (source.read is None) == (source.form is Form.QUOTATION)
        assert source.read is None or source.read <= today
        assert source.url is None or source.url.startswith("https://")


@pytest.mark.parametrize("provider", PROVIDERS, ids=NAMES)
def test_statements_are_short_paraphrase(provider: Provider) -> None:
    for said in provider.statements.values():
        text = said.says or "Nothing."
        assert text.endswith(".")
        assert len(re.findall(r"[.;] ", text)) <= 3
        assert not re.search(r"[\"“”]", text)


def test_the_providers_that_the_field_asks_about_are_there() -> None:
    wanted = {"openai", "anthropic", "azure-openai", "google", "deepseek", "fireworks", "groq"}
    wanted |= {"bedrock", "together", "xai", "cloudflare", "coreweave", "tinfoil", "mistral"}
    assert wanted | {"moonshot", "zai", "alibaba", "openrouter"} <= set(NAMES)


def test_only_what_is_stated_answers_a_question() -> None:
    for provider in PROVIDERS:
        for said in provider.statements.values():
            assert not said.answers or said.confidence is Confidence.STATED
        answered = {answer for said in provider.statements.values() for answer in said.answers}
        assert len(open_questions(provider)) == len(QUESTIONS) - len(answered)


def test_every_clause_has_a_title_and_a_question() -> None:
    assert tuple(CLAUSE_TITLES) == CLAUSES
    assert {question.clause for question in QUESTIONS} == set(CLAUSES)
    assert len({question.id for question in QUESTIONS}) == len(QUESTIONS)
    order = [CLAUSES.index(question.clause) for question in QUESTIONS]
    assert order == sorted(order)


def test_a_file_becomes_a_record() -> None:
    provider = parse_provider(GOOD, name="example")
    assert provider.facts.set_by is SetBy.PROVIDER
    assert provider.unanswered == CLAUSES[1:]
    assert provider.read is not None
    assert provider.read.isoformat() == "2026-12-03"
    assert provider.sources[0].cited == "Guide, Example; read 2026-12-03"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (edited('covers = "its cache"', 'covers = "its cache"\nrating = "A"'), "rating"),
        (edited('form = "page"', 'form = "page"\nauthor = "me"'), "author"),
        (edited('says = "A', 'quote = "x"\nsays = "A'), "quote"),
        (edited('dimensions = ["account"]', 'dimensions = ["account"]\nsla = "1"'), "sla"),
        (edited("[clauses.erasure]\nunanswered = true\n", ""), "erasure"),
        (edited("[clauses.erasure]", "[clauses.erazure]"), "erazure"),
        (edited("[clauses.erasure]\nunanswered = true", "[clauses.erasure]"), "clause erasure"),
        (edited('confidence = "stated"\n', ""), "clause scope"),
        (edited('confidence = "stated"', 'confidence = "sure"'), "sure"),
        (edited('confidence = "stated"', 'confidence = "implied"'), "only what is stated"),
        (edited('confidence = "stated"', 'confidence = "second-hand"'), "second-hand"),
        (edited('says = "A', 'unanswered = true\nsays = "A'), "and yet"),
        (edited('sources = ["guide"]', 'sources = ["other"]'), "no source other"),
        (edited('"scope.boundary"', '"origin.setter"'), "no question origin.setter"),
        (edited('read = "2026-12-03"', 'read = "2026-13-03"'), "month"),
        (edited('read = "2026-12-03"', 'read = "second-hand"'), "source guide"),
        (edited('form = "page"', 'form = "page"\nvia = "a friend"'), "source guide"),
        (edited('set_by = "provider"\n', ""), "facts: give set_by"),
        (edited('"tiers", ', '"tiers", "dimensions", '), "facts: give dimensions"),
        (edited('"tiers", ', '"tiers", "price", '), "price"),
        (edited("[clauses.scope]", "[sources.idle]\n[clauses.scope]"), "title"),
        ("title = ", "at fault"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_provider(text, name="example")
    assert caught.value.hint


def test_a_source_that_nothing_cites_is_refused() -> None:
    idle = GOOD[GOOD.index("[sources.guide]") : GOOD.index("[clauses.scope]")]
    text = edited("[sources.guide]", idle.replace("guide", "idle") + "\n[sources.guide]")
    with pytest.raises(ConfigError, match="not used: idle"):
        parse_provider(text, name="example")


@pytest.mark.parametrize("name", ["nobody", "", "../providers/openai", "records"])
def test_nobody_else_is_known(name: str) -> None:
    with pytest.raises(UsageError, match="Nothing is known"):
        load_provider(name)


def test_names_are_taken_as_people_write_them() -> None:
    assert load_provider("OpenAI").name == "openai"


def test_the_files_are_part_of_the_package() -> None:
    folder = files("kvward.contract.providers")
    assert {f"{name}.toml" for name in NAMES} <= {entry.name for entry in folder.iterdir()}
