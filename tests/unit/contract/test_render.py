"""The written guarantee: what is missing is as visible as what is there."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from contract_documents import contract_of, example, with_value
from kvward.contract import contract_digest, render_markdown
from kvward.terms import ClauseId

HTML = "<script>alert(1)</script> *and* [this](http://example.test) `too`"


def sections(value: dict[str, object]) -> tuple[str, str, str]:
    page = render_markdown(contract_of(value))
    promised, _, rest = page.partition("## What is not promised")
    gaps, _, limits = rest.partition("## What the evidence cannot show")
    return promised, gaps, limits


def test_every_clause_stands_among_what_is_promised() -> None:
    promised, gaps, limits = sections(example())
    for clause in ClauseId:
        assert f"({clause})." in promised
    assert "does not follow" in limits
    assert contract_digest(contract_of(example())) in limits
    assert "hardware" in gaps


@pytest.mark.parametrize("clause", [*ClauseId])
def test_clause_that_is_missing_moves_to_what_is_not_promised(clause: ClauseId) -> None:
    promised, gaps, _ = sections(with_value(example(), f"clauses.{clause}", None))
    assert f"({clause})" not in promised
    assert f"({clause}): nothing is promised.\n" in gaps


def test_tier_without_cover_is_named_where_nothing_is_promised() -> None:
    promised, gaps, _ = sections(example())
    assert "(untrusted): nothing is promised of the engine's own memory." in gaps
    (line,) = [one for one in promised.splitlines() if "(untrusted)" in one]
    assert "Enforced in the disk tier." in line
    assert "memory" not in line


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("clauses.scope.routes.0.level", "user", "same end user of the same tenant"),
        ("clauses.origin.set_by", "caller", "The caller chooses it."),
        ("clauses.untrusted.on_bad_state", "serve", "used all the same"),
        ("clauses.secrecy.encrypted", False, "It is not encrypted."),
        ("clauses.secrecy.names_keyed", False, "names of entries tell"),
        ("clauses.lifetime.max_age_s", 90, "older than 90 seconds"),
        ("clauses.erasure.receipt", False, "No receipt"),
        ("clauses.metadata.visible", [], "told of reuse** (metadata). Nothing."),
        ("clauses.failure.on_loss", "share", "may be shared more widely"),
        ("clauses.evidence.every_days", 7, "At least every 7 days"),
    ],
)
def test_what_is_written_follows_what_is_said(path: str, value: object, words: str) -> None:
    assert words not in sections(example())[0]
    assert words in sections(with_value(example(), path, value))[0]


def test_exception_stands_where_nothing_is_promised_and_its_text_is_no_markup() -> None:
    lapse = {"clause": "erasure", "what": HTML, "until": "2027-01-31"}
    value = with_value(example(), "exceptions", [lapse])
    assert "Until 2027-01-31, erasure does not hold" in sections(value)[1]
    page = MarkdownIt().render(render_markdown(contract_of(value)))
    assert "<script" not in page
    assert "<a " not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; *and*" in page


def test_words_that_promise_too_much_do_not_occur() -> None:
    page = render_markdown(contract_of(example()))
    assert not re.search(r"\b(safe|secure|no leak|guaranteed)\b", page, re.IGNORECASE)
