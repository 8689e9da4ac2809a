"""Reports say what there is, in words that promise nothing."""

import json
import re
from dataclasses import replace

import pytest

from audit_histories import clean_history, position, small_plan
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.report import render_html, render_text
from kvward.audit.report.model import AuditReport, make_report
from kvward.audit.report.text import render_plan
from kvward.audit.sessions import audit_sessions
from kvward.terms import Outcome

PLAN = small_plan()
SOURCE = audit_sessions(PLAN)[0]


def leaking(trial: Trial) -> Trial:
    if trial.tenant == "b" and trial.arm is Arm.READ:
        words = {*trial.own_words, *SOURCE.canary}
        return replace(trial, top_logprobs=(position(words),))
    return trial


def report(trials: list[Trial]) -> AuditReport:
    return make_report(
        title="Test <b>",
        note="",
        plan=PLAN,
        judgement=judge(PLAN, trials, history_digest="f" * 64),
        trials=trials,
        started_unix_s=0,
        duration_s=1.5,
    )


CLEAN = report(clean_history(PLAN))
LEAKING = report(clean_history(PLAN, change=leaking))
EMPTY = report([])


@pytest.mark.parametrize("subject", [CLEAN, LEAKING, EMPTY], ids=["clean", "leaking", "empty"])
def test_no_rendering_promises_anything(subject: AuditReport) -> None:
    page = render_html([subject], heading="Heading", introduction="")
    text = re.sub(r"<style>.*?</style>|<svg.*?</svg>|<[^>]*>", " ", page, flags=re.DOTALL)
    everything = (text + render_text(subject) + subject.to_json().decode()).lower()
    for word in ("safe", "secure", "no leak", "passed"):
        assert word not in everything


def test_page_loads_nothing_and_escapes_what_it_is_given() -> None:
    page = render_html([CLEAN, LEAKING], heading="<script>", introduction="a & b")
    assert not re.search(r"(src|href)=\"(?!#)", page.replace("xlink:href", "href"))
    assert not re.search(r"url\((?!#)|@import|<link|<script|<img|<iframe", page)
    assert "Test &lt;b&gt;" in page
    assert "a &amp; b" in page
    assert page.count("<svg") == 10
    assert page.count("NOT_OBSERVED") > 5
    assert "a/c1" in page


def test_json_holds_every_verdict_with_its_numbers() -> None:
    value = json.loads(LEAKING.to_json())
    assert value["outcome"] == "VIOLATED"
    assert len(value["verdicts"]) == len(PLAN.cells)
    for verdict in value["verdicts"]:
        for field in ("bound", "sensitivity", "controls", "seed", "plan_digest", "history_digest",
                      "planned", "run", "failed", "reason", "tool_version"):  # fmt: skip
            assert field in verdict
    assert value["not_planned"]


def test_text_names_who_saw_whose_words_and_bounds_the_rest() -> None:
    text = render_text(LEAKING)
    assert "content S3   VIOLATED" in text
    assert re.search(r"Words of a/c1 reached b/c\d", text)
    assert "≤" in render_text(CLEAN)
    assert "Not looked at" in text


def test_nothing_looked_at_is_reported_as_inconclusive() -> None:
    assert EMPTY.outcome is Outcome.INCONCLUSIVE
    assert "INCONCLUSIVE" in render_text(EMPTY)


def test_plan_is_readable_before_the_first_request() -> None:
    text = render_plan(PLAN)
    for part in (PLAN.digest[:16], str(PLAN.num_requests), "tokens", "time", "a, b"):
        assert part in text
