"""Side doors: whoever may list what is cached must not be shown other tenants' words.

Each door that the target's preset names is asked with every tenant's key, a few times while the
load runs, because some list only what is in flight, and once after it. What it shows is read as
what it is, a text; no model stands in between. A door that is refused is not there for that caller
and is not asked again.
"""

from __future__ import annotations

from kvward.audit.beside import Askable, Record, side_trial
from kvward.audit.canary.words import CODE_WORDS
from kvward.audit.history import Arm, Redactor
from kvward.audit.listing import NOTHING_LISTED, read_listing
from kvward.audit.plan import DOOR_ROUNDS, TURN_NAMES, Plan
from kvward.audit.target.side import Door

_CONVERSATION = TURN_NAMES[0]


class DoorWatch:
    """Asks the side doors of a plan beside its load.

    Args:
        doors: Of the preset; those that the plan names are asked.
        record: Takes each trial.
    """

    def __init__(
        self, plan: Plan, doors: tuple[Door, ...], target: Askable, record: Record
    ) -> None:
        self._doors = [door for door in doors if door.name in plan.doors]
        self._tenants = plan.tenants
        self._num_replicas = max(1, len(plan.replicas))
        self._target = target
        self._record = record
        self._redactor = Redactor(CODE_WORDS)
        self._every = max(1, plan.sizes.content_outputs // DOOR_ROUNDS)
        self._num_outputs = 0
        self._closed: set[tuple[str, str, int]] = set()

    async def after_output(self) -> None:
        """Ask now and then: the one who calls waits, the others go on."""
        self._num_outputs += 1
        rounds, rest = divmod(self._num_outputs, self._every)
        if rest == 0 and rounds <= DOOR_ROUNDS:
            await self.ask_all()

    async def ask_all(self) -> None:
        """Ask every door that is there, at every address and with every tenant's key."""
        for door in self._doors:
            for replica in range(self._num_replicas):
                for tenant in self._tenants:
                    if (door.name, tenant, replica) not in self._closed:
                        await self._ask(door, tenant, replica)

    async def _ask(self, door: Door, tenant: str, replica: int) -> None:
        answer = await self._target.ask(
            tenant, door.request, conversation=_CONVERSATION, replica=replica
        )
        if answer.is_refusal:
            self._closed.add((door.name, tenant, replica))
        answered = answer.status == 200
        listing = read_listing(answer.body, self._redactor) if answered else NOTHING_LISTED
        self._record(
            side_trial(
                Arm.DOOR,
                answer,
                tenant=tenant,
                conversation=_CONVERSATION,
                name=door.name,
                replica=replica if self._num_replicas > 1 else None,
                listing=listing,
            )
        )
