"""From trials to verdicts: sort what was seen into cells, detect, decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvward.audit.decide import (
    judge_content,
    judge_differential,
    judge_interference,
    judge_metadata,
    judge_timing,
    judge_turns,
)
from kvward.audit.detectors.interference import read_floods
from kvward.audit.detectors.metadata import MetadataReading, read_counts
from kvward.audit.detectors.timing import TimingReading, read_times
from kvward.audit.evidence.asked import Asked
from kvward.audit.evidence.common import CommonTokens
from kvward.audit.evidence.content import content_control, content_evidence
from kvward.audit.evidence.dialogues import Dialogues
from kvward.audit.evidence.differential import differential_evidence
from kvward.audit.evidence.doors import door_evidence
from kvward.audit.evidence.interference import flooded_pairs, loss_findings
from kvward.audit.evidence.load import reuse_seen
from kvward.audit.evidence.odd import odd_findings
from kvward.audit.evidence.pairs import (
    counted_probes,
    metadata_findings,
    pair_trials,
    timed_pairs,
    torn_pairs,
)
from kvward.audit.evidence.saved import note_restored, restored_control, restored_pairs
from kvward.audit.evidence.turns import explained_words, turn_evidence
from kvward.audit.evidence.where import describe_where
from kvward.audit.history import SIDE_ARMS, Trial
from kvward.audit.plan import Plan
from kvward.audit.stats.betting import TimedPair
from kvward.audit.verdict import Stamp, Verdict
from kvward.terms import Channel, ProbeScope


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
        counter_hint=plan.counter_hint,
    )
    everything, beside = trials, [trial for trial in trials if trial.arm in SIDE_ARMS]
    trials = [trial for trial in trials if trial.arm not in SIDE_ARMS]
    # A flood lies between the requests of its pairs, so that their times say nothing.
    timed: list[ProbeScope] = [scope for scope in plan.pair_scopes if scope is not ProbeScope.S8]
    pairs = {scope: timed_pairs(trials, scope) for scope in timed}
    timing = {
        scope: read_times(
            pairs[scope], control=pairs.get(ProbeScope.S0, ()), confidence=plan.confidence
        )
        for scope in timed
    }
    common = CommonTokens(trials)
    counts = {
        scope: read_counts(counted_probes(trials, scope, common)) for scope in plan.pair_scopes
    }
    asked = Asked(plan)
    odd = odd_findings(trials, asked, common) if plan.pair_scopes else {}
    reuse = reuse_seen(plan, trials, timing, common)
    content = _judge_content(plan, trials, beside, reuse, stamp)
    verdicts = []
    for cell in plan.cells:
        match cell.channel:
            case Channel.CONTENT:
                verdicts.append(content[cell.scope])
            case Channel.DIFFERENTIAL:
                verdicts.append(
                    judge_differential(
                        cell.scope,
                        differential_evidence(plan, trials, asked, reuse_seen=reuse),
                        stamp,
                    )
                )
            case Channel.METADATA if cell.scope is ProbeScope.S8:
                verdicts.append(_judge_floods(plan, everything, counts[ProbeScope.S0], stamp))
            case Channel.METADATA:
                is_control = cell.scope is ProbeScope.S0
                verdicts.append(
                    judge_metadata(
                        cell.scope,
                        counts[cell.scope],
                        pair_trials(plan, trials, cell.scope),
                        stamp,
                        control=None if is_control else counts[ProbeScope.S0],
                        findings=note_restored(
                            metadata_findings(trials, cell.scope, counts[cell.scope]),
                            trials,
                            restored_pairs(beside),
                        ),
                        odd=odd.get(cell.scope, ()),
                        where=""
                        if is_control
                        else describe_where(
                            plan, trials, cell.scope, counts[cell.scope].hit_trials
                        ),
                        beside=restored_control(beside) if cell.scope is ProbeScope.S5 else (),
                    )
                )
            case Channel.TIMING:
                is_control = cell.scope is ProbeScope.S0
                verdicts.append(
                    judge_timing(
                        cell.scope,
                        timing[cell.scope],
                        pair_trials(plan, trials, cell.scope),
                        stamp,
                        control=None if is_control else timing[ProbeScope.S0],
                    )
                )
    dropped = {scope: len(torn_pairs(trials, scope)) for scope in timed}
    return Judgement(verdicts=tuple(verdicts), timing=timing, pairs=pairs, dropped_pairs=dropped)


def _judge_content(
    plan: Plan,
    trials: Sequence[Trial],
    beside: Sequence[Trial],
    reuse: bool | None,
    stamp: Stamp,
) -> dict[ProbeScope, Verdict]:
    """Decide every content cell that a plan may have."""
    if not plan.has_content:
        return {}
    dialogues, control = Dialogues(plan, trials), content_control(plan, trials)
    turns = turn_evidence(plan, trials, dialogues, reuse_seen=reuse, control=control)
    content = content_evidence(
        plan,
        trials,
        reuse_seen=reuse,
        control=control,
        dialogues=dialogues,
        given_up=explained_words(turns),
        doors=door_evidence(plan, beside),
    )
    verdicts = {scope: judge_content(scope, found, stamp) for scope, found in content.items()}
    return verdicts | {ProbeScope.S1: judge_turns(turns, stamp)}


def _judge_floods(
    plan: Plan, trials: Sequence[Trial], control: MetadataReading, stamp: Stamp
) -> Verdict:
    protected = plan.protected_tokens or 0
    reading = read_floods(
        flooded_pairs(trials),
        num_flood_prompts=plan.num_flood_prompts,
        protected_tokens=protected,
    )
    probes = [trial for trial in trials if trial.arm not in SIDE_ARMS]
    return judge_interference(
        reading,
        pair_trials(plan, probes, ProbeScope.S8),
        stamp,
        control=control,
        protected_tokens=protected,
        findings=loss_findings(trials, reading.lost),
    )
