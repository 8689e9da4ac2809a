"""Which answers were told of more reuse than their own scopes can explain."""

from __future__ import annotations

from collections.abc import Sequence

from kvward.audit.detectors.history_excess import Sent, find_excess
from kvward.audit.evidence.asked import Asked
from kvward.audit.evidence.finding import finding_of
from kvward.audit.exchange import Ending
from kvward.audit.history import Trial
from kvward.audit.verdict import Finding
from kvward.terms import ProbeScope

_SCOPES = (ProbeScope.S2, ProbeScope.S3)
"""Whose it must have been, when conversation, or conversation and tenant, do not explain it."""


def excess_findings(trials: Sequence[Trial], asked: Asked) -> dict[ProbeScope, tuple[Finding, ...]]:
    """Return findings by whose state the reused one must have been.

    Only where the server counts a code word as one token, as the canary model's does, can words be
    compared with its counts; other answers are left out.
    """
    sent = []
    by_number = {}
    for trial in trials:
        # A request that was given up may have left state behind, like any other.
        if trial.ending is Ending.DONE and trial.prompt_tokens != trial.prompt_words:
            continue
        by_number[trial.number] = trial
        sent.append(
            Sent(
                trial=trial.number,
                owners=(trial.who, trial.tenant),
                words=asked.words(trial),
                answered=trial.text.split(),
                start_ns=trial.start_ns,
                end_ns=trial.start_ns + trial.total_ns,
                cached_tokens=trial.cached_tokens if trial.ending is Ending.DONE else None,
            )
        )
    found: dict[ProbeScope, list[Finding]] = {scope: [] for scope in _SCOPES}
    for excess in find_excess(sent):
        trial = by_number[excess.trial]
        if trial.scope is not None:
            continue  # a probe: its pair says whose state it was
        found[_SCOPES[excess.width]].append(
            finding_of(
                trial,
                cached_tokens=excess.cached_tokens,
                note="its own scope had sent no such beginning",
            )
        )
    return {scope: tuple(findings) for scope, findings in found.items()}
