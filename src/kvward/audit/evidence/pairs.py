"""What coin-flipped pairs gave: times, counts, findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvward.audit.detectors.metadata import CountedProbe, MetadataReading
from kvward.audit.evidence.common import CommonTokens
from kvward.audit.evidence.finding import finding_of
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.plan import Plan
from kvward.audit.stats.betting import TimedPair
from kvward.audit.verdict import Finding, Trials
from kvward.terms import ProbeScope

_PROBE_ARMS = (Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED)


def timed_pairs(trials: Sequence[Trial], scope: ProbeScope) -> tuple[TimedPair, ...]:
    """Return the complete pairs of a scope in the order in which they were run.

    Torn pairs are left out, see `torn_pairs`.
    """
    return tuple(pair for _, pair in _timed(trials, scope))


def timed_numbers(trials: Sequence[Trial], scope: ProbeScope) -> tuple[int, ...]:
    """Return the numbers of the pairs that `timed_pairs` has, in its order."""
    return tuple(number for number, _ in _timed(trials, scope))


def _timed(trials: Sequence[Trial], scope: ProbeScope) -> Iterator[tuple[int, TimedPair]]:
    torn = torn_pairs(trials, scope)
    by_pair: dict[int, dict[Arm, Trial]] = {}
    for trial in trials:
        if trial.scope is scope and trial.arm in _PROBE_ARMS and trial.pair is not None:
            by_pair.setdefault(trial.pair, {})[trial.arm] = trial
    for number, arms in sorted(by_pair.items()):
        if len(arms) < len(_PROBE_ARMS) or number in torn:
            continue
        primed, unprimed = (arms[arm] for arm in _PROBE_ARMS)
        if primed.ttft_ns is None or unprimed.ttft_ns is None or primed.coin is None:
            continue
        times = (primed.ttft_ns, unprimed.ttft_ns)
        first, second = times if primed.coin == 1 else times[::-1]
        yield number, TimedPair(first_ns=first, second_ns=second, coin=primed.coin)


def torn_pairs(trials: Sequence[Trial], scope: ProbeScope) -> frozenset[int]:
    """Return the pairs whose second probe had to wait after the first one was answered.

    The wait came between the two probes of a pair, so their times are no longer exchangeable.
    What was counted stands: a hit is a hit, however long it took to ask.
    """
    return frozenset(
        trial.pair
        for trial in trials
        if trial.scope is scope
        and trial.pair is not None
        and trial.first is False
        and trial.num_retries
    )


def counted_probes(
    trials: Sequence[Trial], scope: ProbeScope, common: CommonTokens
) -> list[CountedProbe]:
    """Return the usage of every answered probe of a scope."""
    return [
        CountedProbe(
            trial=trial.number,
            primed=trial.arm is Arm.PROBE_PRIMED,
            cached_tokens=trial.told_tokens,
            prompt_tokens=trial.prompt_tokens,
            common_tokens=common.of(trial),
        )
        for trial in trials
        if trial.scope is scope and trial.arm in _PROBE_ARMS and trial.ending is Ending.DONE
    ]


def pair_trials(plan: Plan, trials: Sequence[Trial], scope: ProbeScope) -> Trials:
    """Return how many requests of a scope's pairs were planned, run, and failed."""
    arms = (Arm.PRIME, *_PROBE_ARMS)
    of_scope = [trial for trial in trials if trial.scope is scope and trial.pair is not None]
    failed = [trial for trial in of_scope if trial.ending is Ending.FAILED]
    per_arm = [sum(trial.arm is arm for trial in of_scope) for arm in arms]
    failed_per_arm = [sum(trial.arm is arm for trial in failed) for arm in arms]
    return Trials(
        planned=plan.sizes.pairs * len(arms),
        run=len(of_scope),
        failed=len(failed),
        failed_ratio_per_arm=tuple(
            bad / total for bad, total in zip(failed_per_arm, per_arm, strict=True) if total
        ),
    )


def metadata_findings(
    trials: Sequence[Trial], scope: ProbeScope, reading: MetadataReading
) -> tuple[Finding, ...]:
    """Return facts about every probe that reported reuse which is not its own."""
    wrong = {*reading.phantom_hits, *reading.impossible}
    if scope is not ProbeScope.S0:
        wrong.update(reading.hit_trials)
    writers = {
        trial.pair: trial for trial in trials if trial.scope is scope and trial.arm is Arm.PRIME
    }
    findings = []
    for trial in trials:
        if trial.number in wrong:
            writer = writers.get(trial.pair) if trial.arm is Arm.PROBE_PRIMED else None
            findings.append(
                finding_of(
                    trial,
                    source=None if writer is None else writer.who,
                    cached_tokens=trial.told_tokens,
                )
            )
    return tuple(findings)
