"""A report held against its history: what is compared, and what a made-up history does."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from audit_histories import clean_history, small_plan
from kvward.audit.description import describe_target, target_digest
from kvward.audit.judge import judge
from kvward.audit.rejudge import MAX_REPORT_BYTES, rejudge
from kvward.audit.report.model import make_report
from kvward.errors import AuditError, ReportError
from kvward.terms import Channel

PLAN = small_plan(channels=[Channel.METADATA, Channel.TIMING], pairs=8)
TRIALS = clean_history(PLAN)
HISTORY = b"".join(
    line + b"\n" for line in (PLAN.to_json(), *(msgspec.json.encode(trial) for trial in TRIALS))
)
DIGEST = "a" * 64
REPORT = make_report(
    title="Stack \N{SNOWMAN}",
    note="as it was",
    plan=PLAN,
    judgement=judge(PLAN, TRIALS, history_digest=DIGEST),
    trials=TRIALS,
    started_unix_s=1_800_000_000,
    duration_s=12.3456,
).to_json()


def differences(report: bytes, history: bytes = HISTORY) -> tuple[str, ...]:
    return rejudge(history, report, history_digest=DIGEST).differences


def changed(*place: str | int, to: object) -> bytes:
    value = json.loads(REPORT)
    inner = value
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = to
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def test_report_of_its_history_has_no_difference() -> None:
    found = rejudge(HISTORY, REPORT, history_digest=DIGEST)
    assert found.differences == ()
    assert found.report.to_json() == REPORT
    assert list(found.trials) == TRIALS


@pytest.mark.parametrize(
    ("place", "to"),
    [
        (("outcome",), "VIOLATED"),
        (("num_trials",), 1),
        (("not_planned", 0), "nothing"),
        (("plan", "alpha"), 0.2),
        (("plan_digest",), "b" * 64),
        (("verdicts", 0, "run"), 9),
        (("verdicts", 1, "sensitivity"), 1.0),
        (("verdicts", 1, "bound"), None),
        (("verdicts", 2, "controls", 0, "held"), False),
        (("verdicts", 0, "findings"), [{}]),
        (("verdicts", 0, "history_digest"), "b" * 64),
        (("verdicts",), []),
        (("duration_s",), 12.34567),
    ],
)
def test_every_field_is_compared(place: tuple[str | int, ...], to: object) -> None:
    found = differences(changed(*place, to=to))
    assert found
    assert str(place[0]) in found[0]


def test_what_follows_from_nothing_is_taken_from_the_report() -> None:
    for name, to in {"title": "x", "note": "", "started_unix_s": 5, "duration_s": 2.5}.items():
        assert differences(changed(name, to=to)) == ()


def test_same_values_in_other_bytes_are_a_difference() -> None:
    assert differences(REPORT + b"\n") == ("the same values are written in another way",)
    twice = REPORT.replace(b'"outcome":', b'"outcome": "VIOLATED",\n "outcome":', 1)
    assert differences(twice) == ("the same values are written in another way",)
    assert differences(changed("more", to=1)) == ("more is too much",)


@pytest.mark.parametrize(
    "report",
    [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, changed("title", to=1),
     changed("started_unix_s", to=-1), changed("duration_s", to="x")],
)  # fmt: skip
def test_what_is_no_report_is_refused(report: bytes) -> None:
    with pytest.raises(ReportError):
        differences(report)


def test_report_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvward.audit.rejudge.MAX_REPORT_BYTES", 10)
    assert MAX_REPORT_BYTES > 10
    with pytest.raises(ReportError, match="larger"):
        differences(REPORT)


def test_history_that_no_audit_leaves_is_refused_in_words() -> None:
    for data in (b"", b"{}\n", b"[" * 100_000, HISTORY[:-20], b'{"format_version":99}\n'):
        with pytest.raises(AuditError):
            differences(REPORT, data)
    large = replace(PLAN, sizes=replace(PLAN.sizes, pairs=10**9))
    with pytest.raises(AuditError, match="larger than any"):
        differences(REPORT, large.to_json() + b"\n")


def test_whatever_the_rules_do_on_a_made_up_history_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("kvward.audit.rejudge.judge", fail)
    with pytest.raises(AuditError, match="cannot be judged: KeyError"):
        differences(REPORT)


def test_target_has_one_name_whatever_the_seed() -> None:
    assert target_digest(PLAN) == target_digest(replace(PLAN, seed=99, run_nonce="x"))
    others = [
        replace(PLAN, url="http://127.0.0.1:2"), replace(PLAN, model="x"),
        replace(PLAN, replicas=("http://127.0.0.1:2",)), replace(PLAN, preset="x"),
        replace(PLAN, other_model="x"),
    ]  # fmt: skip
    assert len({describe_target(plan) for plan in [PLAN, *others]}) == 6
