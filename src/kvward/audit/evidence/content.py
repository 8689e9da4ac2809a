"""What answers under load show of foreign words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kvward.audit.canary.codebook import Codebook, Session
from kvward.audit.decide.content import MIN_CONTENT_SENSITIVITY, ContentEvidence
from kvward.audit.decide.doors import NO_DOORS, DoorEvidence
from kvward.audit.detectors.content import (
    Reading,
    attribute,
    count_decoy_hits,
    read_foreign_words,
    read_printed_words,
)
from kvward.audit.detectors.turns import Overlap
from kvward.audit.evidence.dialogues import Dialogues
from kvward.audit.evidence.doors import num_comparisons
from kvward.audit.evidence.finding import finding_of, name_of
from kvward.audit.evidence.load import READ_ARMS, load_trials
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.plan import Elicitation, Plan
from kvward.audit.sessions import audit_sessions, relation
from kvward.audit.verdict import Control, Finding
from kvward.terms import ProbeScope

NUM_DECOYS = 999
_HINTS = {
    Elicitation.LOGPROBS: "is the canary model served? --no-canary-model reads any other",
    Elicitation.TEXT: "the model does not go on with its prompt; --canary-model if it is that one",
}
_BOUNDS = {
    Elicitation.LOGPROBS: "rate per output",
    Elicitation.TEXT: "rate per output of whole prompts shown in print",
}
_WORD = re.compile("[a-z]+")


def content_evidence(
    plan: Plan,
    trials: Sequence[Trial],
    *,
    reuse_seen: bool | None,
    control: Control,
    dialogues: Dialogues,
    given_up: Mapping[int, frozenset[str]],
    doors: DoorEvidence = NO_DOORS,
) -> dict[ProbeScope, ContentEvidence]:
    """Return what the answers under load show of foreign words, by probe scope.

    Args:
        reuse_seen: Whether the run showed any reuse; None when the target does not tell.
        control: Own canaries read back, as `content_control` has it.
        given_up: By trial the words that its own dialogue had given up; they are explained.
        doors: What side doors showed beside them, all of it other tenants'.
    """
    codebook = Codebook(seed=plan.seed)
    sessions = audit_sessions(plan)
    decoys = codebook.decoys(NUM_DECOYS)
    comparisons = num_comparisons(plan)
    num_read = num_unreadable = decoy_hits = 0
    findings: dict[ProbeScope, list[Finding]] = {
        scope: [] for scope in (ProbeScope.S0, ProbeScope.S2, ProbeScope.S3)
    }
    num_unnamed = 0
    glass = plan.elicitation is Elicitation.LOGPROBS
    for trial in trials:
        if trial.scope is not None:
            continue
        own = frozenset(trial.own_words)
        reading = _read(plan, trial, own_words=own)
        if trial.arm in READ_ARMS and trial.ending is Ending.DONE:
            num_read += reading.measurable
            num_unreadable += not reading.measurable
        if not reading.foreign:
            continue
        # Whoever's words can be named were leaked, however the answer ended. Words of nobody mean
        # something only where the floor was seen, on a model whose control held.
        decoy_hits += count_decoy_hits(reading.foreign, decoys, num_comparisons=comparisons)
        explained = given_up.get(trial.number, frozenset())
        for scope, finding in _explain(
            trial, reading.foreign, sessions, comparisons, dialogues=dialogues, explained=explained
        ):
            if finding.source is None:
                # Any model but the canary may print a word of its own accord.
                if not (glass and reading.measurable and control.held):
                    continue
                num_unnamed += 1
            findings[scope].append(finding)
    return {
        scope: ContentEvidence(
            trials=load_trials(plan, trials, with_controls=False),
            num_read=num_read,
            num_unreadable=num_unreadable,
            findings=tuple(findings[scope]),
            decoy_hits=decoy_hits,
            control=control,
            num_unnamed=0 if scope is ProbeScope.S0 else num_unnamed,
            hint=_HINTS[plan.elicitation],
            bound_kind=_BOUNDS[plan.elicitation],
            reuse_seen=reuse_seen,
            doors=doors if scope is ProbeScope.S3 else NO_DOORS,
        )
        for scope in findings
    }


def _read(plan: Plan, trial: Trial, *, own_words: frozenset[str]) -> Reading:
    if plan.elicitation is Elicitation.TEXT:
        return read_printed_words(_said(trial), own_words=own_words)
    return read_foreign_words(trial.top_logprobs, _said(trial), own_words=own_words)


def _said(trial: Trial) -> str:
    """Return what an answer says in words, an error's among them: it may quote somebody."""
    if trial.error is None:
        return trial.text
    return " ".join([trial.text, *_WORD.findall(trial.error.lower())])


def _explain(
    trial: Trial,
    foreign: frozenset[str],
    sessions: Sequence[Session],
    comparisons: int,
    *,
    dialogues: Dialogues,
    explained: frozenset[str],
) -> list[tuple[ProbeScope, Finding]]:
    reader = next(
        s for s in sessions if (s.tenant, s.conversation) == (trial.tenant, trial.conversation)
    )
    named = attribute(foreign, sessions, num_comparisons=comparisons)
    if not named:
        left = foreign - explained
        if not left:
            return []
        other = dialogues.name(left, trial=trial.number)
        if other is not None:
            return [_of_dialogue(trial, reader, *other)]
        words = tuple(sorted(left))
        nobodys = finding_of(trial, words=words)
        return [(ProbeScope.S0, nobodys)]
    return [
        (
            relation(reader, found.session),
            finding_of(
                trial,
                source=name_of(found.session),
                words=found.words,
                probability=found.probability,
            ),
        )
        for found in named
    ]


def _of_dialogue(
    trial: Trial, reader: Session, writer: Session, overlap: Overlap
) -> tuple[ProbeScope, Finding]:
    finding = finding_of(
        trial,
        source=name_of(writer),
        words=overlap.words,
        probability=overlap.probability,
        note="words of another dialogue",
    )
    return relation(reader, writer), finding


def content_control(plan: Plan, trials: Sequence[Trial]) -> Control:
    """Return how often a session's canary was read back by the rule that would name a leak."""
    sessions = audit_sessions(plan)
    comparisons = num_comparisons(plan)
    seen = tried = 0
    for trial in trials:
        if trial.arm is not Arm.CONTROL_READ:
            continue
        tried += 1
        reading = _read(plan, trial, own_words=frozenset())
        named = attribute(reading.foreign, sessions, num_comparisons=comparisons)
        own = (trial.tenant, trial.conversation)
        seen += (
            (reading.measurable or plan.elicitation is Elicitation.TEXT)
            and bool(named)
            and (named[0].session.tenant, named[0].session.conversation) == own
        )
    held = tried > 0 and seen / tried >= MIN_CONTENT_SENSITIVITY
    return Control(name="own canary read back", seen=seen, tried=tried, held=held)
