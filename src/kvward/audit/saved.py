"""Saved state: the writer's slot is saved, and the reader brings what was saved and puts it back.

A further form of a forged scope (S5). Whose a state is has to be known to the target and not to
whoever brings it, so putting it back for another tenant has to be refused. A refusal is the
expected answer, and the pair goes on with its usual forgery; what was put back shows as reuse.
What was saved is held in memory from one request to the next and is in no history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvward.audit.beside import Askable, Record, side_trial
from kvward.audit.exchange import Call
from kvward.audit.history import Arm
from kvward.audit.pairs import Pair, claimed_salt, conversation_of
from kvward.audit.placement import Placement
from kvward.audit.plan import TURN_NAMES, Plan
from kvward.audit.target.side import SavedState, SideAnswer, SideRequest
from kvward.audit.target.wire import WireError, find, parse_unverified_object
from kvward.terms import ProbeScope


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """Who asks, and where."""

    arm: Arm
    tenant: str
    conversation: str
    replica: int
    pair: Pair | None


class StateCarrier:
    """Carries states from writers to readers, where a target saves any.

    Args:
        saved: How the target does that; None where it is not known to.
        record: Takes each trial.
    """

    def __init__(
        self,
        plan: Plan,
        saved: SavedState | None,
        target: Askable,
        record: Record,
        *,
        placement: Placement,
    ) -> None:
        self._plan = plan
        wanted = plan.saves_state and ProbeScope.S5 in plan.pair_scopes
        self._saved = saved if wanted else None
        self._target = target
        self._record = record
        self._placement = placement
        self._num_replicas = max(1, len(plan.replicas))

    async def open(self) -> None:
        """Ask every address once whether it saves states; one that does not ends the matter.

        A prompt that names a slot is refused by a server that has none, so this comes first.
        """
        if self._saved is None:
            return
        for replica in range(self._num_replicas):
            asking = _Asking(
                arm=Arm.SAVE,
                tenant=self._plan.tenants[0],
                conversation=TURN_NAMES[0],
                replica=replica,
                pair=None,
            )
            answer = await self._ask(self._saved.save, asking, {"salt": "audit-first"})
            if answer.status != 200:
                self._saved = None
                return

    def pinned(self, call: Call, pair: Pair, arm: Arm) -> Call:
        """Return a placed call; the writer's names the slot that is saved after it."""
        if self._saved is None or not pair.restores or arm is not Arm.PRIME:
            return call
        pin = self._saved.pin.get(call.route, {})
        return replace(call, extra_body={**call.extra_body, **pin})

    async def carry(self, pair: Pair, *, hint: str | None) -> None:
        """Save what the writer has primed, and put it back as the reader.

        Args:
            hint: What the target disclosed to the writer.
        """
        if self._saved is None or not pair.restores:
            return
        saving = self._asking(pair, Arm.SAVE, pair.writer)
        saved = await self._ask(self._saved.save, saving, {"salt": pair.forged_salt})
        state = _state_of(saved, self._saved.state_path)
        if state is None:
            return
        restoring = self._asking(pair, Arm.RESTORE, pair.reader)
        values = {"salt": claimed_salt(pair, hint), "state": state}
        await self._ask(self._saved.restore, restoring, values)

    def _asking(self, pair: Pair, arm: Arm, tenant: str) -> _Asking:
        conversation = conversation_of(pair)
        call = Call(tenant=tenant, prompt="", max_tokens=1, conversation=conversation)
        probe = Arm.PRIME if arm is Arm.SAVE else Arm.PROBE_PRIMED
        placed = self._placement.of_pair(call, pair, probe)
        return _Asking(
            arm=arm, tenant=tenant, conversation=conversation, replica=placed.replica, pair=pair
        )

    async def _ask(
        self, request: SideRequest, asking: _Asking, values: dict[str, Any]
    ) -> SideAnswer:
        # One name for the whole audit, so that no more than one file is left behind.
        filled = request.filled({"name": f"kvward-audit-{self._plan.run_nonce}", **values})
        answer = await self._target.ask(
            asking.tenant, filled, conversation=asking.conversation, replica=asking.replica
        )
        trial = side_trial(
            asking.arm,
            answer,
            tenant=asking.tenant,
            conversation=asking.conversation,
            name="state",
            replica=asking.replica if self._num_replicas > 1 else None,
        )
        if asking.pair is not None:
            trial = replace(
                trial,
                scope=asking.pair.scope,
                pair=asking.pair.number,
                coin=asking.pair.coin,
            )
        self._record(trial)
        return answer


def _state_of(answer: SideAnswer, path: str | None) -> object | None:
    """Return what was saved, or an empty text where the target keeps it; None for nothing."""
    if answer.status != 200:
        return None
    if path is None:
        return ""
    try:
        return find(parse_unverified_object(answer.body), path) or None
    except WireError:
        return None
