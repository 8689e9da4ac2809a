"""Names and bytes of a store tell nobody what is cached or shared; unkeyed names would.

The same as `python -m attacks.names`. Each run draws keys and nonces anew and raises a false alarm
with a probability of at most one in a million.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Callable
from typing import Any

import pytest
from attacks.names import world
from attacks.names.campaign import run_campaign
from attacks.names.candidates import PUBLIC
from attacks.names.verdict import FALSE_ALARM, Predictor, Verdict, judge_ranks
from attacks.names.world import LAYOUT, Guesses

from kvward.canonical import encode
from kvward.scope.derive import derive_block_name, derive_name_key
from kvward.scope.keys import NameKey, TenantKey
from kvward.store import sealed

Namer = Callable[..., bytes]


def won(verdicts: list[Verdict]) -> set[str]:
    return {verdict.strategy for verdict in verdicts if verdict.wins}


def test_nobody_can_tell_what_is_cached_or_shared() -> None:
    verdicts = run_campaign(num_worlds=300, num_guesses=10_000, seed=1)
    assert won(verdicts) == set()
    assert len(verdicts) > 60
    assert sum(verdict.worlds == 300 for verdict in verdicts) > 55
    assert min(verdict.worlds for verdict in verdicts) >= 33


@pytest.mark.parametrize("pair", ["conversations", "epochs"])
def test_nobody_can_tell_conversations_or_epochs_either(pair: str) -> None:
    assert won(run_campaign(num_worlds=150, num_guesses=500, seed=1, pair=pair)) == set()


def without_the_epoch(tenant_key: TenantKey, *, scope_id: bytes, epoch: int) -> NameKey:
    return derive_name_key(tenant_key, scope_id=scope_id, epoch=0)


def without_the_scope(tenant_key: TenantKey, *, scope_id: bytes, epoch: int) -> NameKey:
    return derive_name_key(tenant_key, scope_id=bytes(24), epoch=epoch)


@pytest.mark.parametrize(
    ("pair", "deriver"), [("conversations", without_the_scope), ("epochs", without_the_epoch)]
)
def test_control_name_keys_that_forget(
    pair: str, deriver: Callable[..., NameKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "derive_name_key", deriver)
    found = won(run_campaign(num_worlds=80, num_guesses=500, seed=2, pair=pair))
    assert "shared: equal names" in found
    assert not any(strategy.startswith("cached") for strategy in found)


def unkeyed(_: NameKey, chain_hash: bytes, *part: object) -> bytes:
    return hashlib.sha256(chain_hash).digest()


def cut_short_and_hidden(key: NameKey, chain_hash: bytes, *part: object) -> bytes:
    return key.reveal()[:11] + hashlib.sha256(chain_hash).digest()[:21]


def masked(key: NameKey, chain_hash: bytes, *part: object) -> bytes:
    return bytes(a ^ b for a, b in zip(key.reveal(), chain_hash, strict=True))


def increasing(key: NameKey, chain_hash: bytes, *part: object) -> bytes:
    return (int.from_bytes(chain_hash, "big") // 3).to_bytes(32, "big")


def one_key_for_all(_: NameKey, chain_hash: bytes, *part: object) -> bytes:
    return hmac.digest(b"the key of the deployment", chain_hash, "sha256")


def no_key_in_it(_: NameKey, chain_hash: bytes, *part: Any) -> bytes:
    return hmac.digest(bytes(32), encode("kvward/block-name/v1", chain_hash, *part), "sha256")


@pytest.mark.parametrize(
    ("namer", "expected"),
    [
        (unkeyed, {"cached: equal to sha256", "shared: equal names", "shared: nearest name"}),
        (cut_short_and_hidden, {"cached: equal to sha256", "shared: any 8 equal bytes"}),
        (masked, {"cached: differences of names", "shared: differences of names"}),
        (
            increasing,
            {"cached: order of names", "shared: order of names", "shared: bits of the name"},
        ),
        (one_key_for_all, {"shared: equal names", "shared: any 8 equal bytes"}),
        (no_key_in_it, {"cached: equal to block name, zero key", "shared: equal names"}),
    ],
)
def test_control_names_that_can_be_told(
    namer: Namer, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "derive_block_name", namer)
    verdicts = run_campaign(num_worlds=80, num_guesses=1_000, seed=2)
    assert won(verdicts) >= expected
    assert "cached: bits of the body, plaintext" not in won(verdicts)


def test_control_names_under_a_key_that_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def named_by_the_bucket(keys: Any, chain_hash: bytes, part: Any) -> Any:
        message = encode("kvward/block-name/v1", chain_hash, *part.to_fields())
        name = hmac.digest(keys.scope_bucket, message, "sha256")
        return sealed.EntryName(tenant=keys.tenant_bucket, scope=keys.scope_bucket, name=name)

    monkeypatch.setattr(
        sealed.ScopedStore,
        "_name",
        lambda self, keys, chain_hash, part: named_by_the_bucket(keys, chain_hash, part),
    )
    verdicts = run_campaign(num_worlds=80, num_guesses=1_000, seed=2)
    assert won(verdicts) == {"cached: block name, scope bucket as key"}


def test_control_nonces_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed.os, "urandom", lambda size: bytes(size))
    verdicts = run_campaign(num_worlds=80, num_guesses=1_000, seed=2)
    assert won(verdicts) == {"cached: key stream used again"}


def test_our_own_messages_are_those_of_the_product() -> None:
    guesses = Guesses(10, seed=1)
    chain = guesses.chains[3, -1].tobytes()
    found = PUBLIC["block name, zero key"](chain)
    assert found == derive_block_name(NameKey(bytes(32)), chain, *LAYOUT.parts[0].to_fields())


def test_chance_raises_no_alarm() -> None:
    dice = random.Random(1)
    ranks = {str(n): [dice.randrange(1000) for _ in range(200)] for n in range(200)}
    bits = {str(n): [dice.random() < 0.5 for _ in range(200)] for n in range(200)}
    verdicts = judge_ranks(ranks, bits, num_guesses=1000)
    assert min(verdict.p_value for verdict in verdicts) > FALSE_ALARM


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_a_small_advantage_over_chance_is_an_alarm(share: float) -> None:
    dice = random.Random(1)
    ranks = [dice.randrange(500) if dice.random() < share else dice.randrange(500, 1000)
             for _ in range(300)]  # fmt: skip
    (verdict,) = judge_ranks({"a": ranks}, {}, num_guesses=1000)
    assert verdict.wins


def test_predictions_use_what_is_known_and_no_more() -> None:
    predictor = Predictor()
    assert predictor.predict(5.0)
    predictor.learn(3.0, is_shared=True)
    predictor.learn(0.0, is_shared=False)
    assert predictor.predict(2.0)
    assert not predictor.predict(1.0)
