"""What pairs with a flood in between gave."""

from __future__ import annotations

from collections.abc import Sequence

from kvward.audit.detectors.interference import FloodedPair
from kvward.audit.evidence.finding import finding_of
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.verdict import Finding
from kvward.terms import ProbeScope

_SINGLE = (
    Arm.PRIME,
    Arm.PRIME_AGAIN,
    Arm.PROBE_PRIMED,
    Arm.PROBE_UNPRIMED,
    Arm.FLOOD_AGAIN,
)


def flooded_pairs(trials: Sequence[Trial]) -> list[FloodedPair]:
    """Return every pair of own state after a flood.

    Args:
        trials: All of a history, side requests included.
    """
    by_pair: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.scope is ProbeScope.S8 and trial.pair is not None:
            by_pair.setdefault(trial.pair, []).append(trial)
    return [_flooded(of_pair) for _, of_pair in sorted(by_pair.items())]


def loss_findings(trials: Sequence[Trial], lost: Sequence[int]) -> tuple[Finding, ...]:
    """Return facts about every primed probe whose state was gone."""
    numbers = set(lost)
    return tuple(
        finding_of(
            trial,
            cached_tokens=trial.cached_tokens,
            note="its own state was gone after another tenant's flood",
        )
        for trial in trials
        if trial.number in numbers
    )


def _flooded(trials: Sequence[Trial]) -> FloodedPair:
    done = {trial.arm: trial for trial in trials if trial.ending is Ending.DONE}
    cached = {arm: done[arm].cached_tokens if arm in done else None for arm in _SINGLE}
    probe = done.get(Arm.PROBE_PRIMED)
    sizes = [done[arm].prompt_tokens for arm in (Arm.PRIME, Arm.PROBE_PRIMED) if arm in done]
    known = [size for size in sizes if size is not None]
    return FloodedPair(
        trial=None if probe is None else probe.number,
        prompt_tokens=max(known, default=None),
        before=cached[Arm.PRIME_AGAIN],
        after=cached[Arm.PROBE_PRIMED],
        fresh=cached[Arm.PROBE_UNPRIMED],
        num_flooded=sum(t.arm is Arm.FLOOD and t.ending is Ending.DONE for t in trials),
        again=cached[Arm.FLOOD_AGAIN],
    )
