"""Which pairs had a saved state put back, and what that makes of their findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvward.audit.history import Arm, Trial
from kvward.audit.verdict import Control, Finding
from kvward.terms import ProbeScope

_NOTE = "another tenant's saved state had been put back"


def restored_pairs(trials: Sequence[Trial]) -> frozenset[int]:
    """Return the numbers of the forged pairs whose reader was let put back the writer's state."""
    return frozenset(
        trial.pair
        for trial in trials
        if trial.arm is Arm.RESTORE and trial.status == 200 and trial.pair is not None
    )


def note_restored(
    findings: tuple[Finding, ...], trials: Sequence[Trial], restored: frozenset[int]
) -> tuple[Finding, ...]:
    """Return the findings of forged pairs, those after a restored state with a note."""
    pairs = {t.number: t.pair for t in trials if t.scope is ProbeScope.S5}
    return tuple(
        replace(finding, note=_NOTE) if pairs.get(finding.trial) in restored else finding
        for finding in findings
    )


def restored_control(trials: Sequence[Trial]) -> tuple[Control, ...]:
    """Return how often a state could be saved; nothing where no saving is known."""
    saves = [trial for trial in trials if trial.arm is Arm.SAVE and trial.pair is not None]
    restores = [trial for trial in trials if trial.arm is Arm.RESTORE]
    if not any(trial.arm is Arm.SAVE for trial in trials):
        return ()
    return (
        Control(
            name="saved states that another tenant brought",
            seen=len(restores),
            tried=len(saves),
            held=True,
        ),
    )
