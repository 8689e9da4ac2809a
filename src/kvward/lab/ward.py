"""The ward inside the engine: token verification and leases behind the engine's port."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from kvward.blocks.lease import BlockLeases, Refusal
from kvward.errors import ScopeMismatchError
from kvward.events import EventSink
from kvward.lab.interface import DurableBlocks
from kvward.lab.sealed_tier import SealedTier
from kvward.scope import TokenKey, verify_token
from kvward.scope.owner import verify_owner


class EngineWard:
    """Isolation inside an engine that may be broken.

    Args:
        token_key: Verifies scope tokens. [secret]
        events: Takes "ward.salt-refused", "ward.owner-refused" and "ward.read-refused" with a
            reason.
        tier: Where blocks are kept outside the engine; None keeps none there.
    """

    def __init__(
        self, token_key: TokenKey, *, events: EventSink, tier: SealedTier | None = None
    ) -> None:
        self._tier = tier
        self._token_key = token_key
        self._events = events
        self._leases = BlockLeases()

    def admit(self, cache_salt: str | None) -> str:
        """Return the salt if it is an authentic scope token, else a random scope of its own."""
        try:
            verify_token(cache_salt or "", token_key=self._token_key)
        except ScopeMismatchError:
            self._events.emit("ward.salt-refused")
            return f"random-{secrets.token_hex(16)}"
        return cache_salt or ""

    def durable(self, cache_salt: str | None, owner_tag: str | None) -> DurableBlocks | None:
        """Return what an authentic scope with an authentic owner has outside the engine."""
        if self._tier is None or owner_tag is None:
            return None
        try:
            owner = verify_owner(owner_tag, token=cache_salt or "", token_key=self._token_key)
        except ScopeMismatchError:
            self._events.emit("ward.owner-refused")
            return None
        return self._tier.scope(owner)

    def grant(self, block_id: int, *, scope: str) -> int:
        """Lease a block for writing."""
        return self._leases.grant(block_id, scope=scope)

    def commit(self, block_id: int, *, generation: int, name: bytes) -> bool:
        """Let readers of the scope reuse a block whose layers are all written."""
        return self._leases.commit(block_id, generation=generation, name=name)

    def may_reuse(self, block_id: int, *, scope: str, name: bytes) -> int | None:
        """Return the generation to read under, or None after counting the refusal."""
        answer = self._leases.check_reuse(block_id, scope=scope, name=name)
        if isinstance(answer, Refusal):
            self._events.emit("ward.read-refused", reason=answer.value)
            return None
        return answer

    def written_for(self, block_id: int, *, name: bytes) -> str | None:
        """Return the scope for which a block holds the content `name`."""
        return self._leases.written_for(block_id, name=name)

    def may_restore(self, owner: str | None, *, scope: str) -> bool:
        """Tell whether content that left under `owner` may come back, after counting a refusal."""
        if owner == scope:
            return True
        self._events.emit("ward.read-refused", reason=Refusal.OTHER_SCOPE.value)
        return False

    def still_holds(
        self, block_ids: Sequence[int], generations: Sequence[int], *, scope: str
    ) -> bool:
        """Tell whether a running request may go on, after counting a refusal."""
        refusal = self._leases.check_holding(block_ids, generations, scope=scope)
        if refusal is not None:
            self._events.emit("ward.read-refused", reason=refusal.value)
        return refusal is None
