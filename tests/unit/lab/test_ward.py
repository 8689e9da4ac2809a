"""The ward and the host tier: what was evicted comes back only for those who may read it."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from kvward.events import EventCounter
from kvward.lab.defects import DEFECTS, plant_defects
from kvward.lab.interface import (
    EngineOptions,
    GenerationRequest,
    SamplingParams,
    TokenEvent,
)
from kvward.lab.scheduler import Scheduler
from kvward.lab.ward import EngineWard
from kvward.scope import RootKey, Scope, ScopeIssuer
from kvward.terms import SharingLevel
from lab_models import plain_logits, random_weights, small_config

CONFIG = small_config(num_layers=1)
WEIGHTS = random_weights(CONFIG, seed=1)
ISSUER = ScopeIssuer.from_root_key(RootKey(b"r" * 32), deployment="test")
TENANT_A, TENANT_B = (
    ISSUER.token(
        Scope(deployment="test", tenant=t, level=SharingLevel.TENANT, subject=b"", epoch=0)
    )
    for t in ("a", "b")
)
PREFIX = tuple(np.random.default_rng(0).integers(0, 50, 20).tolist())


@dataclass(kw_only=True)
class Lab:
    """A warded engine with a small device and a large host."""

    defects: tuple[str, ...]
    host_blocks: int
    scheduler: Scheduler = field(init=False)
    events: EventCounter = field(default_factory=EventCounter)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            WEIGHTS,
            CONFIG,
            EngineOptions(
                block_tokens=4, num_blocks=8, max_batch_tokens=8, host_blocks=self.host_blocks
            ),
            behaviour=plant_defects(self.defects, DEFECTS),
            ward=EngineWard(ISSUER.token_key, events=self.events),
            manifest_digest=b"model",
        )

    def begin(self, name: str, prompt: tuple[int, ...], *, salt: str) -> list[TokenEvent]:
        heard: list[TokenEvent] = []
        sampling = SamplingParams(max_tokens=1, top_logprobs=50, ignore_eos=True)
        self.scheduler.submit(
            GenerationRequest(
                request_id=name, prompt_token_ids=prompt, sampling=sampling, cache_salt=salt
            ),
            heard.append,
        )
        return heard

    def ask(self, prompt: tuple[int, ...], *, salt: str) -> TokenEvent:
        heard = self.begin("asked", prompt, salt=salt)
        while self.scheduler.has_work:
            self.scheduler.step()
        return heard[-1]

    def flood(self, *, salt: str) -> None:
        """Push everything that nobody holds off the device."""
        for seed in range(1, 4):
            self.ask(tuple(np.random.default_rng(seed).integers(0, 50, 28).tolist()), salt=salt)


def error_of(event: TokenEvent, prompt: tuple[int, ...]) -> float:
    plain = plain_logits(WEIGHTS, CONFIG, list(prompt))[-1].astype(np.float64)
    plain -= np.log(np.exp(plain - plain.max()).sum()) + plain.max()
    seen = np.array([dict(event.top_logprobs or ())[i] for i in range(50)])
    return float(np.abs(seen - plain).max())


@pytest.mark.parametrize("host_blocks", [0, 50])
def test_tenant_reuses_its_own_prefix_and_the_other_tenant_does_not(host_blocks: int) -> None:
    lab = Lab(defects=(), host_blocks=host_blocks)
    lab.ask(PREFIX, salt=TENANT_A)
    assert lab.ask(PREFIX, salt=TENANT_A).cached_tokens == 16
    lab.flood(salt=TENANT_A)
    assert lab.ask(PREFIX, salt=TENANT_B).cached_tokens == 0
    assert lab.ask(PREFIX, salt=TENANT_B).cached_tokens == 16
    lab.flood(salt=TENANT_A)
    expected = 16 if host_blocks else 0
    assert lab.ask(PREFIX, salt=TENANT_A).cached_tokens == expected
    assert lab.events.counts() == {}


def test_salt_that_is_no_token_reuses_nothing_not_even_its_own() -> None:
    lab = Lab(defects=(), host_blocks=50)
    forged = TENANT_A[:-1] + ("A" if TENANT_A[-1] != "A" else "B")
    for _ in range(3):
        assert lab.ask(PREFIX, salt=forged).cached_tokens == 0
    assert lab.events.counts() == {"ward.salt-refused": 3}


def test_device_hit_of_another_scope_is_refused_when_the_key_lacks_the_scope() -> None:
    lab = Lab(defects=("scope-missing",), host_blocks=0)
    lab.ask(PREFIX, salt=TENANT_A)
    event = lab.ask(PREFIX, salt=TENANT_B)
    assert event.cached_tokens == 0
    assert error_of(event, PREFIX) < 1e-4
    assert lab.events.counts()["ward.read-refused:other-scope"] > 0


def test_host_hit_of_another_scope_is_refused_when_the_key_lacks_the_scope() -> None:
    lab = Lab(defects=("scope-missing",), host_blocks=50)
    lab.ask(PREFIX, salt=TENANT_A)
    lab.flood(salt=TENANT_A)
    assert lab.ask(PREFIX, salt=TENANT_B).cached_tokens == 0


def test_block_that_was_never_written_does_not_come_back_from_the_host() -> None:
    lab = Lab(defects=("early-publish",), host_blocks=50)
    lab.flood(salt=TENANT_B)
    lab.begin("leaves", PREFIX, salt=TENANT_A)
    lab.scheduler.step()  # one chunk of eight tokens is written, the rest is not
    lab.scheduler.cancel("leaves")
    lab.flood(salt=TENANT_B)
    event = lab.ask(PREFIX, salt=TENANT_A)
    assert error_of(event, PREFIX) < 1e-4
    assert event.cached_tokens <= 8


@pytest.mark.parametrize(
    "salt",
    [None, "", "kw1", TENANT_A[:-1], TENANT_A + "A", TENANT_A.upper(), " " + TENANT_A, "\ud800"],
)
def test_only_the_exact_token_is_admitted_under_its_name(salt: str | None) -> None:
    events = EventCounter()
    ward = EngineWard(ISSUER.token_key, events=events)
    assert ward.admit(TENANT_A) == TENANT_A
    first, second = ward.admit(salt), ward.admit(salt)
    assert first != second
    assert TENANT_A not in {first, second}
    assert events.counts() == {"ward.salt-refused": 2}


def test_token_of_another_key_is_not_admitted() -> None:
    other = ScopeIssuer.from_root_key(RootKey(b"s" * 32), deployment="test")
    ward = EngineWard(other.token_key, events=EventCounter())
    assert ward.admit(TENANT_A) != TENANT_A


def test_every_refusal_is_counted_with_its_reason_and_nothing_else_is() -> None:
    events = EventCounter()
    ward = EngineWard(ISSUER.token_key, events=events)
    generation = ward.grant(3, scope="a")
    assert ward.still_holds([3], [generation], scope="a")
    assert ward.may_reuse(3, scope="a", name=b"n") is None
    ward.commit(3, generation=generation + 1, name=b"n")
    assert ward.may_reuse(3, scope="a", name=b"n") is None
    ward.commit(3, generation=generation, name=b"n")
    assert ward.may_reuse(3, scope="a", name=b"n") == generation
    assert ward.may_reuse(3, scope="b", name=b"n") is None
    assert ward.may_reuse(4, scope="a", name=b"n") is None
    assert not ward.still_holds([3], [generation - 1], scope="a")
    assert ward.still_holds([], [], scope="a")
    assert events.counts() == {
        "ward.read-refused": 5,
        "ward.read-refused:not-committed": 2,
        "ward.read-refused:other-scope": 1,
        "ward.read-refused:lease-ended": 2,
    }
