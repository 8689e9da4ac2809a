"""From trials to verdicts: sort what was seen into cells, detect, decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

from kvward.audit.canary.codebook import Codebook, Session
from kvward.audit.decide import (
    MIN_CONTENT_SENSITIVITY,
    ContentEvidence,
    judge_content,
    judge_metadata,
    judge_timing,
)
from kvward.audit.detectors.content import (
    attribute,
    count_decoy_hits,
    read_foreign_words,
)
from kvward.audit.detectors.metadata import CountedProbe, MetadataReading, read_counts
from kvward.audit.detectors.timing import TimingReading, read_times
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.plan import Plan
from kvward.audit.sessions import audit_sessions, relation
from kvward.audit.stats.betting import TimedPair
from kvward.audit.verdict import Control, Finding, Stamp, Trials, Verdict
from kvward.terms import Channel, ProbeScope

NUM_DECOYS = 999
_READ_ARMS = frozenset({Arm.WRITE, Arm.READ, Arm.TWIN, Arm.RETRY})
_PROBE_ARMS = (Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All verdicts of a run, and the readings that plots are made of.

    Attributes:
        dropped_pairs: Pairs whose times are not compared, because one probe was refused for now
            and sent again after the other had been answered.
    """

    verdicts: tuple[Verdict, ...]
    timing: dict[ProbeScope, TimingReading]
    pairs: dict[ProbeScope, tuple[TimedPair, ...]]
    dropped_pairs: dict[ProbeScope, int] = field(default_factory=dict)


def judge(plan: Plan, trials: Sequence[Trial], *, history_digest: str) -> Judgement:
    """Decide every cell of a plan from a history. Pure: the same history, the same verdicts."""
    stamp = Stamp(
        confidence=plan.confidence,
        evidence_threshold=plan.evidence_threshold,
        seed=plan.seed,
        plan_digest=plan.digest,
        history_digest=history_digest,
        cache_tier=plan.cache_tier,
        tool_version=plan.tool_version,
    )
    pairs = {scope: _timed_pairs(trials, scope) for scope in plan.pair_scopes}
    timing = {
        scope: read_times(
            pairs[scope], control=pairs.get(ProbeScope.S0, ()), confidence=plan.confidence
        )
        for scope in plan.pair_scopes
    }
    counts = {scope: read_counts(_counted_probes(trials, scope)) for scope in plan.pair_scopes}
    content = _content_evidence(plan, trials, timing) if plan.has_content else {}
    verdicts = []
    for cell in plan.cells:
        match cell.channel:
            case Channel.CONTENT:
                verdicts.append(judge_content(cell.scope, content[cell.scope], stamp))
            case Channel.METADATA:
                is_control = cell.scope is ProbeScope.S0
                verdicts.append(
                    judge_metadata(
                        cell.scope,
                        counts[cell.scope],
                        _pair_trials(plan, trials, cell.scope),
                        stamp,
                        control=None if is_control else counts[ProbeScope.S0],
                        findings=_metadata_findings(trials, cell.scope, counts[cell.scope]),
                    )
                )
            case Channel.TIMING:
                is_control = cell.scope is ProbeScope.S0
                verdicts.append(
                    judge_timing(
                        cell.scope,
                        timing[cell.scope],
                        _pair_trials(plan, trials, cell.scope),
                        stamp,
                        control=None if is_control else timing[ProbeScope.S0],
                    )
                )
    dropped = {scope: len(_torn_pairs(trials, scope)) for scope in plan.pair_scopes}
    return Judgement(verdicts=tuple(verdicts), timing=timing, pairs=pairs, dropped_pairs=dropped)


def _timed_pairs(trials: Sequence[Trial], scope: ProbeScope) -> tuple[TimedPair, ...]:
    """Return the complete pairs of a scope in the order in which they were run."""
    torn = _torn_pairs(trials, scope)
    by_pair: dict[int, dict[Arm, Trial]] = {}
    for trial in trials:
        if trial.scope is scope and trial.arm in _PROBE_ARMS and trial.pair is not None:
            by_pair.setdefault(trial.pair, {})[trial.arm] = trial
    pairs = []
    for number, arms in sorted(by_pair.items()):
        if len(arms) < len(_PROBE_ARMS) or number in torn:
            continue
        primed, unprimed = (arms[arm] for arm in _PROBE_ARMS)
        if primed.ttft_ns is None or unprimed.ttft_ns is None or primed.coin is None:
            continue
        times = (primed.ttft_ns, unprimed.ttft_ns)
        first, second = times if primed.coin == 1 else times[::-1]
        pairs.append(TimedPair(first_ns=first, second_ns=second, coin=primed.coin))
    return tuple(pairs)


def _torn_pairs(trials: Sequence[Trial], scope: ProbeScope) -> frozenset[int]:
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


def _counted_probes(trials: Sequence[Trial], scope: ProbeScope) -> list[CountedProbe]:
    return [
        CountedProbe(
            trial=trial.number,
            primed=trial.arm is Arm.PROBE_PRIMED,
            cached_tokens=trial.cached_tokens,
            prompt_tokens=trial.prompt_tokens,
        )
        for trial in trials
        if trial.scope is scope and trial.arm in _PROBE_ARMS and trial.ending is Ending.DONE
    ]


def _pair_trials(plan: Plan, trials: Sequence[Trial], scope: ProbeScope) -> Trials:
    arms = (Arm.PRIME, *_PROBE_ARMS)
    of_scope = [trial for trial in trials if trial.scope is scope]
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


def _metadata_findings(
    trials: Sequence[Trial], scope: ProbeScope, reading: MetadataReading
) -> tuple[Finding, ...]:
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
                Finding(
                    trial=trial.number,
                    reader=f"{trial.tenant}/{trial.conversation}",
                    source=None if writer is None else f"{writer.tenant}/{writer.conversation}",
                    cached_tokens=trial.cached_tokens,
                    replica=trial.replica,
                )
            )
    return tuple(findings)


def _content_evidence(
    plan: Plan, trials: Sequence[Trial], timing: dict[ProbeScope, TimingReading]
) -> dict[ProbeScope, ContentEvidence]:
    codebook = Codebook(seed=plan.seed)
    sessions = audit_sessions(plan)
    decoys = codebook.decoys(NUM_DECOYS)
    comparisons = plan.sizes.content_outputs * len(sessions)
    read = [trial for trial in trials if trial.arm in _READ_ARMS]
    failed = sum(trial.ending is Ending.FAILED for trial in read)
    num_read = num_unreadable = decoy_hits = 0
    findings: dict[ProbeScope, list[Finding]] = {
        scope: [] for scope in (ProbeScope.S0, ProbeScope.S2, ProbeScope.S3)
    }
    control, cached = _content_control(trials, sessions, comparisons)
    num_unnamed = 0
    for trial in trials:
        if trial.scope is not None:
            continue
        own = frozenset(trial.own_words)
        reading = read_foreign_words(trial.top_logprobs, trial.text, own_words=own)
        if trial.arm in _READ_ARMS and trial.ending is Ending.DONE:
            num_read += reading.measurable
            num_unreadable += not reading.measurable
        if not reading.foreign:
            continue
        # Whoever's words can be named were leaked, however the answer ended. Words of nobody mean
        # something only where the floor was seen, on a model whose control held.
        decoy_hits += count_decoy_hits(reading.foreign, decoys, num_comparisons=comparisons)
        for scope, finding in _explain(trial, reading.foreign, sessions, comparisons):
            if finding.source is None:
                if not (reading.measurable and control.held):
                    continue
                num_unnamed += 1
            findings[scope].append(finding)
    reuse_seen = _reuse_seen(cached, timing, plan)
    return {
        scope: ContentEvidence(
            trials=Trials(
                planned=plan.sizes.content_outputs,
                run=len(read),
                failed=failed,
                failed_ratio_per_arm=_failed_ratios(read),
            ),
            num_read=num_read,
            num_unreadable=num_unreadable,
            findings=tuple(findings[scope]),
            decoy_hits=decoy_hits,
            control=control,
            num_unnamed=0 if scope is ProbeScope.S0 else num_unnamed,
            reuse_seen=reuse_seen,
        )
        for scope in findings
    }


def _failed_ratios(trials: Sequence[Trial]) -> tuple[float, ...]:
    ratios = []
    for arm in _READ_ARMS:
        endings = [trial.ending for trial in trials if trial.arm is arm]
        if len(endings) >= 20:  # a share of fewer says little; the total is judged as well
            ratios.append(endings.count(Ending.FAILED) / len(endings))
    total = max(1, len(trials))
    ratios.append(sum(trial.ending is Ending.FAILED for trial in trials) / total)
    return tuple(ratios)


def _explain(
    trial: Trial, foreign: frozenset[str], sessions: Sequence[Session], comparisons: int
) -> list[tuple[ProbeScope, Finding]]:
    reader = next(
        s for s in sessions if (s.tenant, s.conversation) == (trial.tenant, trial.conversation)
    )
    name = f"{trial.tenant}/{trial.conversation}"
    named = attribute(foreign, sessions, num_comparisons=comparisons)
    if not named:
        words = tuple(sorted(foreign))
        nobodys = Finding(trial=trial.number, reader=name, words=words, replica=trial.replica)
        return [(ProbeScope.S0, nobodys)]
    return [
        (
            relation(reader, found.session),
            Finding(
                trial=trial.number,
                reader=name,
                source=f"{found.session.tenant}/{found.session.conversation}",
                words=found.words,
                probability=found.probability,
                replica=trial.replica,
            ),
        )
        for found in named
    ]


def _content_control(
    trials: Sequence[Trial], sessions: Sequence[Session], comparisons: int
) -> tuple[Control, list[int | None]]:
    """Return how often a session's canary was read back by the rule that would name a leak."""
    seen = tried = 0
    cached = []
    for trial in trials:
        if trial.arm is not Arm.CONTROL_READ:
            continue
        tried += 1
        cached.append(trial.cached_tokens)
        reading = read_foreign_words(trial.top_logprobs, trial.text, own_words=frozenset())
        named = attribute(reading.foreign, sessions, num_comparisons=comparisons)
        own = (trial.tenant, trial.conversation)
        seen += (
            reading.measurable
            and bool(named)
            and (named[0].session.tenant, named[0].session.conversation) == own
        )
    held = tried > 0 and seen / tried >= MIN_CONTENT_SENSITIVITY
    return Control(name="own canary read back", seen=seen, tried=tried, held=held), cached


def _reuse_seen(
    cached: Sequence[int | None], timing: dict[ProbeScope, TimingReading], plan: Plan
) -> bool | None:
    """Tell whether the run showed reuse of own state: by count, else by time, else unknown."""
    known = [value for value in cached if value is not None]
    if known:
        return any(value > 0 for value in known)
    control = timing.get(ProbeScope.S0)
    if control is not None and control.num_pairs:
        return control.log_e_max >= log(plan.evidence_threshold)
    return None
