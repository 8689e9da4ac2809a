"""Blocks that were changed, moved, spliced or replayed do not open; and the attack can win.

The same as `python -m attacks.hostile_state`, in small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from attacks.hostile_state.campaign import Campaign, iter_mutations
from attacks.hostile_state.mutation import Fate
from attacks.hostile_state.place import FilesystemPlace, MemoryPlace
from attacks.hostile_state.report import Report
from attacks.hostile_state.world import World

from kvward.blocks.layout import Part
from kvward.errors import OpenError
from kvward.events import EventCounter
from kvward.scope.keyring import CachedKeys
from kvward.seal import BlockSealer, Lifetime, OpenRefusal, batch, envelope
from kvward.store.sealed import ScopedStore

# Enough for every kind of mutation, 14 at a time, at least once.
ONE_ROUND = 14 * len(list(iter_mutations()))
ALWAYS = Lifetime(oldest_unix_s=0, newest_unix_s=2**64)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("keyrings"))
    yield world
    world.close()


def attack(world: World, *, mutations: int = ONE_ROUND, seed: int = 3) -> Report:
    return Campaign(world, MemoryPlace(), seed=seed).run(mutations)


def assert_nothing_won(report: Report, mutations: int) -> None:
    assert (dict(report.wrong), report.examples) == ({}, [])
    assert report.applied == mutations
    assert mutations == sum(
        report.total(column) for column in ("refused", "incomplete", "unseen", "opened")
    )
    assert report.reasons.total() == report.total("bad_parts") > mutations * 0.9
    assert set(report.reasons) == {reason.value for reason in OpenRefusal}
    assert report.controls > mutations * 0.1
    for mutation in iter_mutations():
        row = report.rows[mutation.label]
        assert row.applied >= 14, mutation.label
        assert set(row.reasons) <= {reason.value for reason in mutation.reasons}, mutation.label
        assert bool(row.reasons) == bool(mutation.reasons), mutation.label


def test_labels_name_one_mutation_each_and_every_fate_is_tried() -> None:
    labels = [mutation.label for mutation in iter_mutations()]
    assert len(labels) == len(set(labels)) > 100
    assert {mutation.fate for mutation in iter_mutations()} == set(Fate)


def test_nothing_that_memory_answers_is_accepted(world: World) -> None:
    assert_nothing_won(attack(world, mutations=16_000, seed=1), 16_000)


def test_nothing_that_changed_files_answer_is_accepted(world: World, tmp_path: Path) -> None:
    place = FilesystemPlace(tmp_path / "store")
    assert_nothing_won(Campaign(world, place, seed=2).run(4_000), 4_000)


def test_nothing_is_accepted_by_threads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_THREAD_BYTES", 1)
    with ThreadPoolExecutor(3) as executor:
        campaign = Campaign(world, MemoryPlace(), seed=4, executor=executor)
        assert_nothing_won(campaign.run(ONE_ROUND), ONE_ROUND)


def accepted(report: Report) -> set[str]:
    return {label for label, row in report.rows.items() if row.opened and row.fate != Fate.OPENS}


def test_control_an_opener_without_authentication(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = BlockSealer.open_into

    def open_into(self: BlockSealer, sealed: Any, out: memoryview, **where: Any) -> None:
        try:
            genuine(self, sealed, out, **where)
        except OpenError as exc:
            if exc.reason != OpenRefusal.NOT_AUTHENTIC:
                raise

    monkeypatch.setattr(BlockSealer, "open_into", open_into)
    report = attack(world)
    assert {"bit of the tag", "of another model", "noise under a perfect header"} <= accepted(
        report
    )
    assert report.wrong["accepted"] > 500


@pytest.mark.parametrize(
    ("forgotten", "won"),
    [
        ("name", {"of another position", "of another model", "parts of two ranks exchanged"}),
        ("layout_digest", {"of another layout", "of another layout, our header"}),
    ],
)
def test_control_associated_data_that_forget(
    forgotten: str, won: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = envelope.build_aad

    def build_aad(suite: Any, header: bytes, **bound: bytes) -> bytes:
        return genuine(suite, header, **(bound | {forgotten: b""}))  # type: ignore[arg-type]

    monkeypatch.setattr(envelope, "build_aad", build_aad)
    world = World(tmp_path)
    assert accepted(attack(world)) >= won
    world.close()


def test_control_associated_data_without_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = envelope.build_aad

    def build_aad(suite: Any, header: bytes, **bound: bytes) -> bytes:
        return genuine(suite, b"", **bound)

    monkeypatch.setattr(envelope, "build_aad", build_aad)
    world = World(tmp_path)
    won = {"created: a little older", "created: a little younger", "expired, made young again"}
    assert accepted(attack(world)) >= won
    world.close()


def test_control_an_opener_without_age(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = BlockSealer.open_into

    def open_into(self: BlockSealer, sealed: Any, out: memoryview, **where: Any) -> None:
        genuine(self, sealed, out, **(where | {"lifetime": ALWAYS}))

    monkeypatch.setattr(BlockSealer, "open_into", open_into)
    assert accepted(attack(world)) == {"expired", "reader's clock behind"}


def test_control_keys_that_are_remembered_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attacks.hostile_state.deployment import Deployment

    move_on = World._move_on

    def remember(self: World) -> None:
        for deployment in self.deployments.values():
            keys = CachedKeys(deployment.keyring, cache_s=10**6)
            for owner in self.owners.values():
                keys.reading_keys(owner)
            deployment.keys = keys  # type: ignore[attr-defined]
        move_on(self)

    store = Deployment.store

    def store_of(self: Deployment, *arguments: Any) -> Any:
        made = store(self, *arguments)
        if hasattr(self, "keys") and len(arguments) == 4:  # the campaign's readers only
            object.__setattr__(made._shared, "keys", self.keys)
        return made

    monkeypatch.setattr(World, "_move_on", remember)
    monkeypatch.setattr(Deployment, "store", store_of)
    world = World(tmp_path)
    assert "erased or retired: by an old token" in accepted(attack(world))
    world.close()


def leave_a_byte(load: Callable[..., list[bool]]) -> Callable[..., list[bool]]:
    def broken(
        self: ScopedStore, hashes: Any, staging: memoryview, *, parts: tuple[Part, ...]
    ) -> list[bool]:
        loaded = load(self, hashes, staging, parts=parts)
        if not all(loaded):
            size = len(staging) // len(loaded)
            staging[(loaded.index(False) + 1) * size - 1] = 1
        return loaded

    return broken


def test_control_memory_that_is_not_wiped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScopedStore, "load", leave_a_byte(ScopedStore.load))
    assert set(attack(world).wrong) == {"not wiped"}


def test_control_an_opener_that_raises(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_into(self: BlockSealer, *_: Any, **__: Any) -> None:
        raise IndexError("out of range")

    monkeypatch.setattr(BlockSealer, "open_into", open_into)
    assert attack(world, mutations=100).wrong["crashed"] > 0


def test_control_refusals_that_are_not_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventCounter, "emit", lambda self, name, **_: None)
    wrong = attack(world).wrong
    assert {"miscounted", "mutations unexplained", "refusals unexplained"} <= set(wrong)


def test_control_what_was_refused_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = MemoryPlace()
    campaign = Campaign(world, place, seed=3)
    monkeypatch.setattr(place.backend, "delete_many", lambda names: None)
    wrong = campaign.run(ONE_ROUND).wrong
    assert wrong["not dropped"] > 500
