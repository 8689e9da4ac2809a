"""Which route and which address each request goes to: decided by the plan's seed alone.

Both probes of a pair go to one address by one route, or their times could not be compared. The
writer may have gone to another address, where the question is whose state is shared; where it is
what state may be shared or lost, and in the positive controls, everything goes to one address,
because replicas need not share anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvward.audit.exchange import Call
from kvward.audit.history import Arm
from kvward.audit.pairs import Pair
from kvward.audit.plan import Plan
from kvward.audit.prompts import Prompt, derive_random
from kvward.terms import ProbeScope

_SAME_ADDRESS = frozenset(set(ProbeScope) - {ProbeScope.S2, ProbeScope.S3, ProbeScope.S5})


class Placement:
    """Places the calls of one plan. Pure: the same plan, the same places."""

    def __init__(self, plan: Plan) -> None:
        self._seed = plan.seed
        self._routes = plan.routes
        self._num_replicas = max(1, len(plan.replicas))

    def of_pair(self, call: Call, pair: Pair, arm: Arm) -> Call:
        """Return the call of a pair with its place."""
        name = f"{pair.scope}:{pair.number}"
        role = "prime" if arm is Arm.PRIME and pair.scope not in _SAME_ADDRESS else "probe"
        return self._place(call, route_of=name, replica_of=f"{name}:{role}")

    def of_prompt(self, call: Call, prompt: Prompt) -> Call:
        """Return a call of the content phase with its place, the same for the same prompt.

        So a canary is read back where it was written, twins race at one address, and a dialogue
        stays where it began.
        """
        name = prompt.thread or prompt.recipe
        return self._place(call, route_of=name, replica_of=name)

    def everywhere(self, call: Call) -> Iterator[Call]:
        """Yield a call once for every address and route."""
        for replica in range(self._num_replicas):
            for route in self._routes:
                yield replace(call, route=route, replica=replica)

    def _place(self, call: Call, *, route_of: str, replica_of: str) -> Call:
        route = self._routes[self._pick("route", route_of, len(self._routes))]
        replica = self._pick("replica", replica_of, self._num_replicas)
        return replace(call, route=route, replica=replica)

    def _pick(self, what: str, name: str, among: int) -> int:
        if among == 1:
            return 0
        return int(derive_random(self._seed, what, name).integers(among))
