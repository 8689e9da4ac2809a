"""Several engines behind one door: a request goes where its prefix is, else where least is open."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvward.blocks.chain import derive_chain_root
from kvward.canonical import encode
from kvward.errors import UsageError
from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.interface import Engine, GenerationRequest, SlotView, TokenEvent
from kvward.lab.media import name_inputs
from kvward.lab.naming import NameChain

_MAX_NAMES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    replica: int
    salt: str | None


class PrefixRouter:
    """Implements `Engine` over replicas.

    It knows by name which prefixes it has sent where, under the salt they came with; whether a
    replica still has one, it does not ask. Every event tells which replica it comes from and how
    many tokens of the prompt had been sent there before.

    Args:
        replicas: At least one, all alike, started and stopped with this.
        block_tokens: Of a replica's blocks.
    """

    def __init__(
        self, replicas: Sequence[Engine], *, block_tokens: int, behaviour: Behaviour
    ) -> None:
        self._replicas = tuple(replicas)
        self._block_tokens = block_tokens
        self._behaviour = behaviour
        self._lock = threading.Lock()
        self._places: OrderedDict[bytes, _Place] = OrderedDict()
        self._num_open = [0] * len(self._replicas)
        self._open_at: dict[str, int] = {}
        self._next = 0

    def start(self) -> None:
        """Start every replica."""
        for replica in self._replicas:
            replica.start()

    def submit(self, request: GenerationRequest, on_event: Callable[[TokenEvent], None]) -> None:
        """Queue a request at the replica that is chosen for it."""
        with self._lock:
            number, routed_tokens = self._choose(request)
            self._num_open[number] += 1
            self._open_at[request.request_id] = number

        def tell(event: TokenEvent) -> None:
            if event.finish_reason is not None:
                self._end(request.request_id)
            on_event(replace(event, replica=number, routed_tokens=routed_tokens))

        try:
            self._replicas[number].submit(request, tell)
        except BaseException:
            self._end(request.request_id)
            raise

    def cancel(self, request_id: str) -> None:
        """Stop a request; unknown or finished ids are ignored."""
        number = self._open_at.get(request_id)
        if number is not None:
            self._replicas[number].cancel(request_id)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the names of the adapters that are loaded."""
        return self._replicas[0].adapters

    def load_adapter(self, name: str, *, seed: int) -> None:
        """Load an adapter at every replica."""
        for replica in self._replicas:
            replica.load_adapter(name, seed=seed)

    def load_base(self, *, seed: int) -> None:
        """Load other weights at every replica."""
        for replica in self._replicas:
            replica.load_base(seed=seed)

    def erase(self, cache_salt: str | None) -> int:
        """Forget all state of a salt at every replica, and where it was sent."""
        with self._lock:
            names = [name for name, place in self._places.items() if place.salt == cache_salt]
            for name in names:
                del self._places[name]
        return sum(replica.erase(cache_salt) for replica in self._replicas)

    def slots(self, cache_salt: str | None) -> list[SlotView]:
        """Return the slots of all replicas; two of them may have one number."""
        return [slot for replica in self._replicas for slot in replica.slots(cache_salt)]

    def save_slot(self, slot_id: int, cache_salt: str | None) -> bytes | None:  # noqa: ARG002
        """Refuse: a slot is a place in one engine."""
        raise UsageError("Slots cannot be saved behind a router.")

    def restore_slot(self, slot_id: int, cache_salt: str | None, state: bytes) -> int:  # noqa: ARG002
        """Refuse: a slot is a place in one engine."""
        raise UsageError("Slots cannot be restored behind a router.")

    def stats(self) -> dict[str, int]:
        """Return the counters of all replicas together."""
        total: Counter[str] = Counter()
        for replica in self._replicas:
            total.update(replica.stats())
        return dict(total)

    def stop(self) -> None:
        """Stop every replica."""
        for replica in self._replicas:
            replica.stop()

    def _choose(self, request: GenerationRequest) -> tuple[int, int]:
        """Return a replica, and how many tokens of the prompt it has been sent before."""
        names = self._names(request)
        known = [self._places[name] for name in names if name in self._places]
        number, matched = self._least_open(), 0
        if names and names[0] in self._places:
            number = known[0].replica
            while matched < len(known) and known[matched].replica == number:
                matched += 1
        for name in names:
            self._places[name] = _Place(replica=number, salt=request.cache_salt)
            self._places.move_to_end(name)
        while len(self._places) > _MAX_NAMES:
            self._places.popitem(last=False)
        return number, matched * self._block_tokens

    def _names(self, request: GenerationRequest) -> list[bytes]:
        salt = None if self._behaviour.slips(Slip.SCOPE_MISSING_ROUTER) else request.cache_salt
        model = hashlib.sha256(encode("kvward/lab/route/v1", request.adapter)).digest()
        chain = NameChain(
            derive_chain_root(manifest_digest=model, scope=salt),
            request.prompt_token_ids,
            block_tokens=self._block_tokens,
            inputs=name_inputs(request.pictures, self._behaviour),
        )
        # As in the engine: the last token is always computed.
        num_blocks = max(0, len(request.prompt_token_ids) - 1) // self._block_tokens
        return [chain.name(number) for number in range(num_blocks)]

    def _least_open(self) -> int:
        """Return where least is open; those that are equal take turns."""
        order = [(self._next + n) % len(self._replicas) for n in range(len(self._replicas))]
        number = min(order, key=lambda n: self._num_open[n])
        self._next = (number + 1) % len(self._replicas)
        return number

    def _end(self, request_id: str) -> None:
        with self._lock:
            number = self._open_at.pop(request_id, None)
            if number is not None:
                self._num_open[number] -= 1
