"""What a scope is: the set of requests allowed to share cached state."""

from __future__ import annotations

from dataclasses import dataclass

from kvward.terms import SharingLevel

MAX_EPOCH = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One set of requests that may read each other's cached state. Nothing has a default.

    Attributes:
        deployment: Name of the installation. Never empty.
        tenant: Accountable party, from the authenticated principal. Never empty.
        level: How far state is shared.
        subject: What narrows the level inside the tenant: a keyed hash of the conversation
            or user, random bytes for `REQUEST`, empty for `TENANT` only.
        epoch: Generation of keys, 0 <= epoch < 2^63.
    """

    deployment: str
    tenant: str
    level: SharingLevel
    subject: bytes
    epoch: int

    def __post_init__(self) -> None:
        if not self.deployment or not self.tenant:
            raise ValueError("A scope needs a deployment and a tenant.")
        if not 0 <= self.epoch <= MAX_EPOCH:
            raise ValueError("An epoch lies between 0 and 2^63 - 1.")
        if (self.level is SharingLevel.TENANT) != (self.subject == b""):
            raise ValueError("Exactly the tenant level has an empty subject.")
