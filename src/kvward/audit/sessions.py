"""Who takes part in the content phase, and how two of them stand to each other."""

from __future__ import annotations

from typing import Protocol

from kvward.audit.canary.codebook import Codebook, Session
from kvward.audit.plan import TURN_NAMES, Plan
from kvward.terms import ProbeScope


def audit_sessions(plan: Plan) -> tuple[Session, ...]:
    """Return the sessions of the content phase: every conversation name under every tenant."""
    codebook = Codebook(seed=plan.seed)
    return tuple(
        codebook.session(tenant=tenant, conversation=conversation)
        for tenant in plan.tenants
        for conversation in TURN_NAMES
    )


class Party(Protocol):
    """Whoever asks as a tenant in a conversation: a session, or one of its trials."""

    @property
    def tenant(self) -> str:
        """Return the tenant."""

    @property
    def conversation(self) -> str:
        """Return the conversation."""


def relation(reader: Party, writer: Party) -> ProbeScope:
    """Return the probe scope of a reader that saw a writer's state."""
    if reader.tenant != writer.tenant:
        return ProbeScope.S3
    return ProbeScope.S2 if reader.conversation != writer.conversation else ProbeScope.S0
