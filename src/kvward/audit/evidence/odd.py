"""Answers that were odd whatever they were asked for: too much reuse, or not the request's own."""

from __future__ import annotations

from collections.abc import Sequence

from kvward.audit.detectors.identity import Answered, find_shared_ids, find_wrong_sizes
from kvward.audit.evidence.asked import Asked
from kvward.audit.evidence.common import CommonTokens
from kvward.audit.evidence.excess import excess_findings
from kvward.audit.evidence.finding import finding_of
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.plan import Route
from kvward.audit.sessions import relation
from kvward.audit.verdict import Finding
from kvward.terms import ProbeScope


def odd_findings(
    trials: Sequence[Trial], asked: Asked, common: CommonTokens
) -> dict[ProbeScope, tuple[Finding, ...]]:
    """Return findings by who was shown whose: S0 where it is the caller's own, or nobody's."""
    found: dict[ProbeScope, list[Finding]] = {
        scope: list(findings) for scope, findings in excess_findings(trials, asked).items()
    }
    by_number = {trial.number: trial for trial in trials}
    answers = {
        trial.number: Answered(
            trial=trial.number,
            ids=trial.response_ids,
            prompt_words=trial.prompt_words,
            prompt_tokens=trial.prompt_tokens,
        )
        for trial in trials
        if trial.ending is not Ending.FAILED
    }
    # What a route puts around a prompt is counted with it, and so is a picture: sizes are usual
    # for one route, and with or without a picture.
    groups: dict[tuple[Route, bool], list[Answered]] = {}
    for number, answer in answers.items():
        trial = by_number[number]
        groups.setdefault((trial.route, trial.scope is ProbeScope.S7), []).append(answer)
    wrong_sizes = [confusion for group in groups.values() for confusion in find_wrong_sizes(group)]
    for confusion in (*find_shared_ids(answers.values()), *wrong_sizes):
        trial = by_number[confusion.trial]
        other = None if confusion.other is None else by_number[confusion.other]
        scope = ProbeScope.S0 if other is None else relation(trial, other)
        if scope is ProbeScope.S0 and other is not None and len(trial.response_ids) == 1:
            continue  # an answer that was kept for its own conversation
        found.setdefault(scope, []).append(
            finding_of(
                trial,
                source=None if other is None else other.who,
                note=confusion.what,
            )
        )
    found.setdefault(ProbeScope.S7, []).extend(_confused_pictures(trials, common))
    return {scope: tuple(findings) for scope, findings in found.items()}


def _confused_pictures(trials: Sequence[Trial], common: CommonTokens) -> list[Finding]:
    """Return a finding for each picture that was taken for another one of the crowd."""
    return [
        finding_of(
            trial,
            cached_tokens=trial.told_tokens,
            note="its picture was never sent before, and state of another one was reused",
        )
        for trial in trials
        if trial.arm is Arm.CROWD
        and trial.ending is Ending.DONE
        and (trial.told_tokens or 0) > common.of(trial)
    ]
