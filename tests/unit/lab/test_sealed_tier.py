"""The sealed tier: state comes back to its owner in a new engine, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from keyrings import LIFETIMES, Clock, open_keyring
from kvward.errors import BackendUnavailableError
from kvward.events import EventCounter
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import EngineOptions, GenerationRequest, SamplingParams, TokenEvent
from kvward.lab.scheduler import Scheduler
from kvward.lab.sealed_tier import SealedTier, block_layout
from kvward.lab.ward import EngineWard
from kvward.scope import ScopeIssuer
from kvward.scope.keyring import CachedKeys, Keyring
from kvward.store import Entry, Room, SealedStore, StoreLimits
from kvward.store.backends.memory import MemoryBackend
from kvward.terms import SharingLevel
from kvward.testing.faults import Fault, FaultyBackend
from lab_models import plain_logits, random_weights, small_config
from lab_schedules import WARD_MENDS

CONFIG = small_config(num_layers=2)
WEIGHTS = random_weights(CONFIG, seed=1)
OPTIONS = EngineOptions(block_tokens=4, num_blocks=16, max_batch_tokens=8)
LAYOUT = block_layout(CONFIG, block_tokens=OPTIONS.block_tokens)
PREFIX = tuple(np.random.default_rng(0).integers(0, 50, 22).tolist())
FULL_BLOCKS_TOKENS = 20


class World:
    """One keyring and one store, over which engines come and go."""

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self.issuer = ScopeIssuer(keyring, keyring.token_key, epochs=keyring, deployment="d")
        self.memory = MemoryBackend(Room(capacity_bytes=1 << 24, share_bytes=1 << 22))
        self.backend = FaultyBackend(self.memory, [])
        self.events = EventCounter()

    def engine(self, *, defects: tuple[str, ...] = (), model: bytes = b"model") -> Engine:
        return Engine(self, defects=defects, model=model)

    def salt_and_tag(self, tenant: str, conversation: str) -> tuple[str, str]:
        subject = self.issuer.named_subject(tenant, conversation)
        scope = self.issuer.current(tenant=tenant, level=SharingLevel.CONVERSATION, subject=subject)
        token = self.issuer.token(scope)
        return token, self.issuer.owner_tag(scope, token=token)


class Engine:
    """A new engine, with nothing in its memory."""

    def __init__(self, world: World, *, defects: tuple[str, ...], model: bytes) -> None:
        self.world = world
        store = SealedStore(
            world.backend,
            CachedKeys(world.keyring, cache_s=LIFETIMES.cache_s),
            layout=LAYOUT,
            limits=StoreLimits(max_age_s=LIFETIMES.max_age_s, clock_skew_s=1, retry_after_s=1.0),
            events=world.events,
        )
        self.tier = SealedTier(store, LAYOUT, events=world.events)
        self.scheduler = Scheduler(
            WEIGHTS,
            CONFIG,
            OPTIONS,
            behaviour=plant_defects(defects, DEFECTS),
            ward=EngineWard(world.keyring.token_key, events=world.events, tier=self.tier),
            manifest_digest=model,
        )

    def begin(
        self, name: str, prompt: tuple[int, ...], salt: str, tag: str | None
    ) -> list[TokenEvent]:
        heard: list[TokenEvent] = []
        request = GenerationRequest(
            request_id=name,
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=1, top_logprobs=50, ignore_eos=True),
            cache_salt=salt,
            owner_tag=tag,
        )
        self.scheduler.submit(request, heard.append)
        return heard

    def run(self) -> None:
        while self.scheduler.has_work:
            self.scheduler.step()
        self.tier.flush()

    def ask(self, prompt: tuple[int, ...], salt: str, tag: str | None) -> int:
        """Return how many tokens were reused, after checking that the answer is right."""
        heard = self.begin("asked", prompt, salt, tag)
        self.run()
        assert error_of(heard[-1], prompt) < 1e-4
        return heard[-1].cached_tokens


def error_of(event: TokenEvent, prompt: tuple[int, ...]) -> float:
    plain = plain_logits(WEIGHTS, CONFIG, list(prompt))[-1].astype(np.float64)
    plain -= np.log(np.exp(plain - plain.max()).sum()) + plain.max()
    seen = np.array([dict(event.top_logprobs or ())[i] for i in range(50)])
    return float(np.abs(seen - plain).max())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    keyring = open_keyring(("sqlite", str(tmp_path / "keyring.db")), Clock())
    yield World(keyring)
    keyring.database.close()


def test_a_new_engine_gives_state_back_to_its_owner_only(world: World) -> None:
    salt, tag = world.salt_and_tag("a", "one")
    assert world.engine().ask(PREFIX, salt, tag) == 0
    engine = world.engine()
    for tenant, conversation in (("b", "one"), ("a", "two")):
        assert engine.ask(PREFIX, *world.salt_and_tag(tenant, conversation)) == 0
    assert engine.ask(PREFIX, salt, tag) == FULL_BLOCKS_TOKENS
    assert engine.scheduler.stats["opened_blocks"] == 5
    assert world.engine().ask((*PREFIX[:9], 1, 2, 3), salt, tag) == 8
    assert world.events.counts() == {}


def test_another_model_finds_nothing(world: World) -> None:
    salt, tag = world.salt_and_tag("a", "one")
    world.engine().ask(PREFIX, salt, tag)
    assert world.engine(model=b"other").ask(PREFIX, salt, tag) == 0


def test_nothing_is_kept_without_an_authentic_owner(world: World) -> None:
    salt, tag = world.salt_and_tag("a", "one")
    other_salt, other_tag = world.salt_and_tag("b", "one")
    engine = world.engine()
    engine.ask(PREFIX, salt, None)
    engine.ask(PREFIX, salt, other_tag)
    engine.ask(PREFIX, other_salt, tag)
    engine.ask(PREFIX, salt, "kwo1.forged.x")
    engine.ask(PREFIX, salt + "x", tag)
    assert world.memory.stats() == {}
    assert world.events.counts()["ward.owner-refused"] == 4


def test_what_was_tampered_with_is_computed_anew(world: World) -> None:
    salt, tag = world.salt_and_tag("a", "one")
    world.engine().ask(PREFIX, salt, tag)
    names = list(world.memory._entries)
    assert len(names) == 5
    swapped = dict(zip(names, [*names[1:], names[0]], strict=True))
    stored = {name: world.memory.get_many([name])[0] for name in names}
    world.memory.put_many(
        [Entry(name=n, data=stored[swapped[n]] or b"", expires_unix_s=2**40) for n in names]
    )
    assert world.engine().ask(PREFIX, salt, tag) == 0
    counts = world.events.counts()
    assert counts["store.refused"] == counts["store.refused:not-authentic"] == 5
    # What was computed anew has taken the place of what did not open.
    assert world.engine().ask(PREFIX, salt, tag) == FULL_BLOCKS_TOKENS


def test_a_store_that_fails_costs_speed_only(world: World) -> None:
    salt, tag = world.salt_and_tag("a", "one")
    world.engine().ask(PREFIX, salt, tag)
    world.backend.faults = [Fault(error=BackendUnavailableError("It does not answer."))]
    assert world.engine().ask(PREFIX, salt, tag) == 0
    assert world.events.counts()["store.unavailable:store.backend-unavailable"] >= 1
    world.backend.faults = []
    assert world.engine().ask(PREFIX, salt, tag) == FULL_BLOCKS_TOKENS


@pytest.mark.parametrize("defect", WARD_MENDS)
def test_no_defect_of_the_engine_gets_into_the_store(world: World, defect: str) -> None:
    """Whatever a broken engine keeps, a sound one that reads it answers right."""
    engine = world.engine(defects=(defect,))
    random = np.random.default_rng(7)
    asked = []
    for turn in range(40):
        tenant, conversation = f"t{turn % 3}", f"c{turn % 2}"
        prompt = tuple(random.integers(0, 50, int(random.integers(5, 30))).tolist())
        if turn % 4 and asked:
            prompt = (*asked[int(random.integers(len(asked)))][2][:16], *prompt[:8])
        asked.append((tenant, conversation, prompt))
        engine.begin(f"r{turn}", prompt, *world.salt_and_tag(tenant, conversation))
        engine.scheduler.step()
        if turn % 5 == 4:
            engine.scheduler.cancel(f"r{turn - 1}")
    engine.run()
    sound, reused = world.engine(), 0
    for tenant, conversation, prompt in asked:
        reused += sound.ask(prompt, *world.salt_and_tag(tenant, conversation))
    assert reused > 0
    assert "store.refused" not in world.events.counts()


def test_what_cannot_be_saved_in_time_is_given_up_and_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvward.lab.sealed_tier._MAX_PENDING_BLOCKS", 2)
    world.backend.faults = [Fault(delay_s=0.2, methods=frozenset({"put_many"}))]
    salt, tag = world.salt_and_tag("a", "one")
    engine = world.engine()
    long = tuple(np.random.default_rng(3).integers(0, 50, 60).tolist())
    engine.ask(long, salt, tag)
    assert world.events.counts()["tier.dropped"] > 0
    # Another tenant's state is kept all the same.
    engine.ask(PREFIX[:9], *world.salt_and_tag("b", "one"))
    world.backend.faults = []
    assert 0 <= world.engine().ask(long, salt, tag) < 56
    assert world.engine().ask(PREFIX[:9], *world.salt_and_tag("b", "one")) == 8
