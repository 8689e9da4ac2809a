"""What the answers of dialogues show of what was given up in them, and what they do not show."""

from __future__ import annotations

from collections.abc import Sequence

from kvward.audit.canary.codebook import DIALOGUE_TURNS, Codebook
from kvward.audit.decide.turns import TurnEvidence
from kvward.audit.detectors.content import Reading, read_foreign_words
from kvward.audit.detectors.turns import Anomaly, Overlap, lost_turns, match_version
from kvward.audit.dialogue import Fate, Version
from kvward.audit.evidence.dialogues import Dialogues, Turn
from kvward.audit.evidence.finding import finding_of
from kvward.audit.evidence.load import turn_trials
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.plan import Plan
from kvward.audit.verdict import Control, Finding

NUM_DECOYS = 999
_MIN_BEHIND_REUSE = 0.5


def turn_evidence(
    plan: Plan,
    trials: Sequence[Trial],
    dialogues: Dialogues,
    *,
    reuse_seen: bool | None,
    control: Control,
) -> TurnEvidence:
    """Return what the answers of dialogues show.

    Args:
        reuse_seen: Whether the run showed any reuse; None when the target does not tell.
        control: Own canaries read back. Where it did not hold, a missing turn says nothing, since
            it cannot be told from a model that does not show its context.
    """
    decoys = Codebook(seed=plan.seed).dialogue_decoys(NUM_DECOYS)
    # At most one version of a dialogue is given up, so an answer is asked about one at most.
    comparisons = max(1, plan.num_turn_outputs + DIALOGUE_TURNS)
    given_up: dict[int, Turn] = {}
    findings: list[Finding] = []
    counts = dict.fromkeys(Anomaly, 0)
    num_read = num_unreadable = num_partial = decoy_hits = 0
    for turn in dialogues.turns:
        reading = _read(turn)
        if turn.trial.arm is Arm.TURN and turn.trial.ending is Ending.DONE:
            num_read += reading.measurable
            num_unreadable += not reading.measurable
        former = given_up.get(turn.dialogue.number)
        if former is not None and reading.foreign:
            overlap = _match(reading, turn, former.version.words, comparisons)
            num_partial += bool(overlap.words) and not overlap.named
            if overlap.named:
                anomaly = Anomaly.STALE if _was_answered(former) else Anomaly.DIRTY
                counts[anomaly] += 1
                findings.append(_shown(turn, former.version, overlap, anomaly))
        if reading.foreign:
            decoy_hits += sum(_match(reading, turn, decoy, comparisons).named for decoy in decoys)
        if control.held and turn.trial.ending is Ending.DONE:
            for lost in lost_turns(reading, turn.history):
                counts[Anomaly.LOST] += 1
                findings.append(_lost(turn, lost))
        if turn.version.fate is not Fate.KEPT:
            given_up[turn.dialogue.number] = turn
    behind_reuse = _behind_reuse(dialogues)
    return TurnEvidence(
        trials=turn_trials(plan, trials),
        num_read=num_read,
        num_unreadable=num_unreadable,
        findings=tuple(findings),
        counts={anomaly.value: count for anomaly, count in counts.items()},
        num_partial=num_partial,
        decoy_hits=decoy_hits,
        control=control,
        behind_reuse=behind_reuse,
        reuse_seen=reuse_seen,
        turns_tell=any(t.trial.cached_tokens is not None for t in _later_turns(dialogues)),
    )


def explained_words(evidence: TurnEvidence) -> dict[int, frozenset[str]]:
    """Return by trial the foreign words that are of a version which its own dialogue gave up."""
    return {
        finding.trial: frozenset(finding.words) for finding in evidence.findings if finding.words
    }


def _read(turn: Turn) -> Reading:
    trial = turn.trial
    return read_foreign_words(trial.top_logprobs, trial.text, own_words=turn.own_words)


def _match(reading: Reading, turn: Turn, version: frozenset[str], num_comparisons: int) -> Overlap:
    return match_version(
        reading.foreign, version, own_words=turn.own_words, num_comparisons=num_comparisons
    )


def _was_answered(former: Turn) -> bool:
    # A client may go away too late, and then it has given up an answer and not a request.
    return former.trial.ending is Ending.DONE


def _shown(turn: Turn, former: Version, overlap: Overlap, anomaly: Anomaly) -> Finding:
    how = "replaced" if anomaly is Anomaly.STALE else "cancelled"
    return finding_of(
        turn.trial,
        source=turn.trial.who,
        words=overlap.words,
        probability=overlap.probability,
        note=f"{anomaly}: a version of turn {former.turn} that had been {how}, "
        f"in the answer to turn {turn.version.turn}",
    )


def _lost(turn: Turn, lost: int) -> Finding:
    return finding_of(
        turn.trial,
        note=f"{Anomaly.LOST}: no word of turn {lost} of its own prompt "
        f"in the answer to turn {turn.version.turn}",
    )


def _later_turns(dialogues: Dialogues) -> list[Turn]:
    """Return the answered turns that follow another one, whose state they may reuse."""
    return [
        turn
        for turn in dialogues.turns
        if turn.version.turn > 1 and turn.trial.arm is Arm.TURN and turn.trial.ending is Ending.DONE
    ]


def _behind_reuse(dialogues: Dialogues) -> Control:
    seen = tried = 0
    for turn in _later_turns(dialogues):
        if not turn.trial.cached_tokens:
            continue
        reading = _read(turn)
        tried += 1
        seen += reading.measurable and turn.history[0].words <= reading.own_seen
    held = tried == 0 or seen / tried >= _MIN_BEHIND_REUSE
    return Control(name="first turn seen behind reuse", seen=seen, tried=tried, held=held)
