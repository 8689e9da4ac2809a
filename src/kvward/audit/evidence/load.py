"""Which answers of the load are read, and how many of them failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from kvward.audit.detectors.timing import TimingReading
from kvward.audit.evidence.common import CommonTokens
from kvward.audit.exchange import Ending
from kvward.audit.history import CONTROL_ARMS, Arm, Trial
from kvward.audit.plan import Plan
from kvward.audit.verdict import Trials
from kvward.terms import ProbeScope

READ_ARMS = frozenset({Arm.WRITE, Arm.READ, Arm.TWIN, Arm.RETRY, Arm.TURN})


def load_trials(plan: Plan, trials: Sequence[Trial], *, with_controls: bool) -> Trials:
    """Return how many requests of the load were planned, run, and failed.

    Args:
        with_controls: Whether the control's requests are read like the others.
    """
    arms = READ_ARMS | CONTROL_ARMS if with_controls else READ_ARMS
    controls = len(CONTROL_ARMS) * plan.sizes.control_outputs if with_controls else 0
    return _count_trials(trials, arms, planned=plan.sizes.content_outputs + controls)


def turn_trials(plan: Plan, trials: Sequence[Trial]) -> Trials:
    """Return how many of them belong to dialogues, those cancelled on purpose left out."""
    return _count_trials(trials, frozenset({Arm.TURN}), planned=plan.num_turn_outputs)


def _count_trials(trials: Sequence[Trial], arms: frozenset[Arm], *, planned: int) -> Trials:
    read = [trial for trial in trials if trial.arm in arms]
    return Trials(
        planned=planned,
        run=len(read),
        failed=sum(trial.ending is Ending.FAILED for trial in read),
        failed_ratio_per_arm=_failed_ratios(read, arms),
    )


def _failed_ratios(trials: Sequence[Trial], arms: frozenset[Arm]) -> tuple[float, ...]:
    ratios = []
    for arm in arms:
        endings = [trial.ending for trial in trials if trial.arm is arm]
        if len(endings) >= 20:  # a share of fewer says little; the total is judged as well
            ratios.append(endings.count(Ending.FAILED) / len(endings))
    total = max(1, len(trials))
    ratios.append(sum(trial.ending is Ending.FAILED for trial in trials) / total)
    return tuple(ratios)


def reuse_seen(
    plan: Plan,
    trials: Sequence[Trial],
    timing: Mapping[ProbeScope, TimingReading],
    common: CommonTokens,
) -> bool | None:
    """Tell whether the run showed reuse: by count, else by time, else unknown.

    Reuse of what any two prompts have in common shows nothing.
    """
    # Of the whole load and not of the control alone: where whole answers are kept, a repeated
    # request is not computed again, and tells what it told the first time.
    load = [trial for trial in trials if trial.scope is None]
    if any(trial.told_tokens is not None for trial in load):
        return any((trial.told_tokens or 0) > common.of(trial) for trial in load)
    control = timing.get(ProbeScope.S0)
    if control is not None and control.num_pairs:
        return control.log_e_max >= log(plan.evidence_threshold)
    return None
