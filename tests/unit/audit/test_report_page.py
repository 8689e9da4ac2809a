"""The page for people who use a keyboard, a small screen, a screen reader, or see no colours."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from audit_reports import REPORTS, clean_report, empty_report, leaking_report
from kvward.audit.report import render_html
from kvward.audit.report.matrices import plot_content, plot_reuse
from kvward.audit.report.plots import plot_bounds, plot_evidence, plot_times

_VOID = {"meta", "br", "link", "img", "input", "hr"}


class Elements(HTMLParser):
    """Collects start tags with their attributes, and whether everything was closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.mark.parametrize("name", REPORTS)
def test_page_is_well_formed_and_holds_no_element_of_anybody_else(name: str) -> None:
    elements = Elements(render_html([REPORTS[name]()], heading="H", introduction=""))
    assert not elements.open
    for tag in ("script", "img", "iframe", "object", "link", "form"):
        assert not elements.all(tag)
    for _, attributes in elements.found:
        assert not [key for key in attributes if key.startswith("on")]
    targets = {a["id"] for _, a in elements.found if a.get("id")}
    for link in elements.all("a"):
        assert (link["href"] or "").removeprefix("#") in targets


def test_everything_that_scrolls_or_opens_is_reached_by_keyboard_and_named() -> None:
    elements = Elements(
        render_html([clean_report(), leaking_report()], heading="H", introduction="")
    )
    scrolling = [a for a in elements.all("div") if a.get("class") == "scroll"]
    assert len(scrolling) == 11
    for attributes in scrolling:
        assert attributes["tabindex"] == "0"
        assert attributes["aria-label"]
    pictures = elements.all("svg")
    assert len(pictures) == 10
    assert all(a["role"] == "img" and len(a["aria-label"] or "") > 30 for a in pictures)
    assert len(elements.all("details")) == len(elements.all("summary")) == 10


def test_plots_say_in_words_what_they_show() -> None:
    clean, found = clean_report(), leaking_report()
    bounds = plot_bounds(clean)
    assert bounds is not None
    assert (
        "content S0 S2 S3: ≤ 0.026 from 121 counted; content S1: ≤ 0.12 from 26 counted"
        in bounds.told
    )
    assert "timing S2 S3 S5: ≤ 0.075 from 40 counted" in bounds.told
    seen = plot_bounds(found)
    assert seen is not None
    assert re.search(r"content S3: ≤ 0\.16 from 121 counted, 11 seen", seen.told)
    times, evidence = plot_times(clean), plot_evidence(clean)
    assert times is not None
    assert evidence is not None
    assert re.search(r"S0: median [\d.]+ ms primed by the writer, [\d.]+ ms not", times.told)
    assert "S3 ended at" in evidence.told
    words, reuse = plot_content(found), plot_reuse(found)
    assert words is not None
    assert reuse is not None
    assert "a/c1 in b/c3: 4" in words.told
    assert reuse.told == "a in b: 16."
    quiet = plot_content(clean)
    assert quiet is not None
    assert quiet.told == "Every pair of 8 by 8: 0."


def test_arms_and_scopes_differ_by_more_than_colour() -> None:
    times, evidence = plot_times(clean_report()), plot_evidence(clean_report())
    assert times is not None
    assert evidence is not None
    assert "stroke-dasharray" in times.svg
    strokes = set(re.findall(r"stroke-dasharray: ([\d. ,]+)", evidence.svg))
    assert len(strokes) == 3  # and one line without a break


def test_names_stay_names_in_plots() -> None:
    page = plot_content(REPORTS["hostile"]())
    assert page is not None
    assert "<img" not in page.svg
    assert "$\\frac{1}{0}$" in unescape(plot_reuse_of_dollars())


def plot_reuse_of_dollars() -> str:
    subject = clean_report()
    plan = replace(subject.plan, tenants=("$\\frac{1}{0}$", "b"))
    plot = plot_reuse(replace(subject, plan=plan))
    assert plot is not None
    return plot.svg


def test_empty_audit_has_no_plot_of_numbers_that_it_does_not_have() -> None:
    assert plot_times(empty_report()) is None
    assert plot_evidence(empty_report()) is None
    assert plot_bounds(empty_report()) is None
