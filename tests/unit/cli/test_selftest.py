"""The self-test's matrix: what counts as found, missed and stray, and how it is shown."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log

import pytest

from audit_histories import clean_history
from audit_reports import PLAN, report_of
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.cli.selftest.matrix import Answer, Matrix, Row, Seen, read_matrix, strongest
from kvward.cli.selftest.page import render_page
from kvward.cli.selftest.reading import read_report
from kvward.cli.selftest.text import mark, name_of, render_matrix
from kvward.terms import CacheTier, Channel, Outcome, ProbeScope


def seen(channel: Channel, outcome: Outcome, *, first: int | None = None) -> Seen:
    return Seen(
        channel=channel,
        outcome=outcome,
        scopes=(ProbeScope.S3,),
        tier=CacheTier.DEVICE,
        num_requests=700,
        first_request=first,
        events=int(outcome is Outcome.VIOLATED),
        num_read=600,
        sensitivity=0.95,
        reason="Because.",
    )


def row(*said: Seen, defect: str | None = "leaky", expected: frozenset[Channel]) -> Row:
    return Row(
        defect=defect,
        failure_class="K-SCOPE" if defect else "",
        rate=None,
        start=("--blocks", "96"),
        expected=expected,
        seen=said,
        seconds=1.0,
    )


PROBES = (Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED)
METADATA = frozenset({Channel.METADATA, Channel.TIMING})


def test_defect_is_found_by_any_channel_that_should_see_it() -> None:
    found = row(
        seen(Channel.METADATA, Outcome.VIOLATED, first=40),
        seen(Channel.TIMING, Outcome.NOT_OBSERVED),
        expected=METADATA,
    )
    assert found.answer is Answer.FOUND
    assert found.first_request == 40
    assert mark(found, Channel.METADATA) == "found"
    assert mark(found, Channel.TIMING) == "(-)"
    assert mark(found, Channel.CONTENT) == "."


def test_defect_that_only_others_see_is_a_stray_alarm_and_not_a_find() -> None:
    stray = row(
        seen(Channel.CONTENT, Outcome.VIOLATED, first=3),
        seen(Channel.METADATA, Outcome.VIOLATED, first=40),
        expected=METADATA,
    )
    assert stray.answer is Answer.STRAY
    assert mark(stray, Channel.CONTENT) == "found!"


@pytest.mark.parametrize("outcome", [Outcome.INCONCLUSIVE, Outcome.NOT_OBSERVED])
def test_defect_that_nothing_is_said_of_is_missed(outcome: Outcome) -> None:
    assert row(seen(Channel.METADATA, outcome), expected=METADATA).answer is Answer.MISSED


def test_any_alarm_of_the_clean_engine_is_stray() -> None:
    told = seen(Channel.METADATA, Outcome.NOT_OBSERVED)
    times = seen(Channel.TIMING, Outcome.INCONCLUSIVE)
    quiet = row(told, times, defect=None, expected=frozenset())
    loud = row(seen(Channel.TIMING, Outcome.VIOLATED), defect=None, expected=frozenset())
    assert quiet.answer is Answer.CLEAN
    assert loud.answer is Answer.STRAY
    assert name_of(quiet) == "clean --blocks 96"


@pytest.mark.parametrize(
    "said",
    [
        (),
        (seen(Channel.TIMING, Outcome.NOT_OBSERVED),),
        (seen(Channel.METADATA, Outcome.NOT_OBSERVED), seen(Channel.CONTENT, Outcome.INCONCLUSIVE)),
    ],
)
def test_engine_without_a_defect_that_could_not_be_read_is_not_called_clean(
    said: tuple[Seen, ...],
) -> None:
    unread = row(*said, defect=None, expected=frozenset())
    assert unread.answer is Answer.UNCLEAR
    matrix = Matrix(rows=(unread,), seed=1, outputs=600, pairs=40, started_unix_s=0)
    assert matrix.unclear == (unread,)
    assert json.loads(matrix.to_json())["unclear"] == 1


def test_strongest_of_two_audits_counts() -> None:
    device = seen(Channel.METADATA, Outcome.NOT_OBSERVED)
    host = replace(seen(Channel.METADATA, Outcome.VIOLATED, first=9), tier=CacheTier.HOST)
    assert strongest([device, host]) == (host,)
    assert strongest([host, device]) == (host,)


def test_matrix_says_how_many_were_found_and_which_were_not() -> None:
    rows = (
        row(seen(Channel.METADATA, Outcome.NOT_OBSERVED), defect=None, expected=frozenset()),
        row(seen(Channel.METADATA, Outcome.VIOLATED, first=40), expected=METADATA),
        row(seen(Channel.METADATA, Outcome.NOT_OBSERVED), defect="quiet", expected=METADATA),
        row(seen(Channel.CONTENT, Outcome.VIOLATED), defect="<odd>", expected=frozenset()),
    )
    matrix = Matrix(rows=rows, seed=1, outputs=600, pairs=40, started_unix_s=0)
    value = json.loads(matrix.to_json())
    assert (value["found"], value["missed"], value["stray"]) == (1, ["quiet"], ["<odd>"])
    assert value["rows"][1]["seen"][0]["first_request"] == 40
    assert read_matrix(matrix.to_json()) == matrix
    text = render_matrix(matrix)
    assert "1 of 3 defects found, 1 alarms without a cause, 1 of 1 clean engines" in text
    page = render_page(matrix)
    assert "&lt;odd&gt;" in page
    assert "<odd>" not in page


def test_request_that_completes_the_evidence_of_times_is_one_of_a_pair_that_was_compared() -> None:
    def change(trial: Trial) -> Trial:
        fast = trial.arm is Arm.PROBE_PRIMED and trial.scope is ProbeScope.S3
        torn = trial.scope is ProbeScope.S3 and trial.arm in PROBES and (trial.pair or 0) < 6
        return replace(
            trial,
            ttft_ns=1_000 if fast else trial.ttft_ns,
            first=trial.arm is Arm.PROBE_PRIMED if trial.arm in PROBES else None,
            num_retries=int(torn),
        )

    trials = clean_history(PLAN, change=change)
    (timing,) = [s for s in read_report(report_of(trials), trials) if s.channel is Channel.TIMING]
    assert timing.outcome is Outcome.VIOLATED
    assert timing.first_request is not None
    last = trials[timing.first_request - 1]
    assert (last.scope, last.arm) == (ProbeScope.S3, Arm.PROBE_UNPRIMED)
    threshold = log(PLAN.evidence_threshold)
    path = judge(PLAN, trials, history_digest="h").timing[ProbeScope.S3].log_e_path
    steps = 1 + next(step for step, log_e in enumerate(path) if log_e >= threshold)
    assert last.pair == 6 + steps - 1  # the first six were not compared
