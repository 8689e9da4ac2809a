"""What side doors showed of other tenants' words."""

from __future__ import annotations

from collections.abc import Sequence

from kvward.audit.canary.codebook import Session
from kvward.audit.canary.words import CODE_WORDS
from kvward.audit.decide.doors import DoorEvidence
from kvward.audit.detectors.content import Attribution, attribute
from kvward.audit.evidence.finding import finding_of, name_of
from kvward.audit.history import Arm, Trial
from kvward.audit.listing import MAX_TEXTS
from kvward.audit.plan import Plan
from kvward.audit.sessions import audit_sessions


def num_comparisons(plan: Plan) -> int:
    """Return how often chance is asked for a session's name in a whole plan: outputs and lists."""
    texts = plan.sizes.content_outputs + plan.num_door_requests * MAX_TEXTS
    return texts * len(audit_sessions(plan))


def door_evidence(plan: Plan, trials: Sequence[Trial]) -> DoorEvidence:
    """Return what the side doors showed.

    A tenant may be shown all of its own sessions, so only other tenants' words count, and of them
    only those that no session of the one who asked uses.
    """
    asked = [trial for trial in trials if trial.arm is Arm.DOOR]
    there = [trial for trial in asked if trial.status == 200]
    sessions = audit_sessions(plan)
    comparisons = num_comparisons(plan)
    findings = []
    for trial in there:
        own = {
            word
            for session in sessions
            if session.tenant == trial.tenant
            for word in (*session.canary, *session.voice)
        }
        others = [session for session in sessions if session.tenant != trial.tenant]
        for found in _named(trial, others, comparisons):
            words = tuple(word for word in found.words if word not in own)
            if not words:
                continue
            findings.append(
                finding_of(
                    trial,
                    source=name_of(found.session),
                    words=words,
                    probability=found.probability,
                    note="a list of what is cached showed it",
                )
            )
    return DoorEvidence(
        num_asked=len(asked),
        num_there=len(there),
        num_unread=sum(trial.unread_lists > 0 for trial in there),
        findings=tuple(findings),
    )


def _named(trial: Trial, sessions: Sequence[Session], comparisons: int) -> list[Attribution]:
    """Return each session that a text of the answer names, once, by its most certain text."""
    best: dict[tuple[str, str], Attribution] = {}
    for text in trial.listed:
        # Without the caller's own words left out: a text is drawn on one session's words, and how
        # many of them another session happens to have is what the probability counts.
        words = CODE_WORDS.intersection(text.split())
        for found in attribute(words, sessions, num_comparisons=comparisons):
            name = (found.session.tenant, found.session.conversation)
            if name not in best or found.probability < best[name].probability:
                best[name] = found
    return sorted(best.values(), key=lambda found: found.probability)
