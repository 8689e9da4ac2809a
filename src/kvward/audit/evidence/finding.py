"""From a trial to a finding about it."""

from __future__ import annotations

from kvward.audit.canary.codebook import Session
from kvward.audit.history import Trial
from kvward.audit.verdict import Finding


def finding_of(
    trial: Trial,
    *,
    source: str | None = None,
    words: tuple[str, ...] = (),
    cached_tokens: int | None = None,
    probability: float | None = None,
    note: str | None = None,
    deviation_nats: float | None = None,
) -> Finding:
    """Return a finding that a trial's answer shows, with who asked and where."""
    return Finding(
        trial=trial.number,
        reader=trial.who,
        replica=trial.replica,
        source=source,
        words=words,
        cached_tokens=cached_tokens,
        probability=probability,
        note=note,
        deviation_nats=deviation_nats,
    )


def name_of(session: Session) -> str:
    """Return a session's name as findings have it, "tenant/conversation"."""
    return f"{session.tenant}/{session.conversation}"
