"""The owner of a store attacks what lies in it, and gets nothing. And: the attack can win.

`make soak` does a million of these; here are enough to meet every mutation many times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attacks.stored_state.campaign import Campaign, Tally
from attacks.stored_state.mutations import all_mutations
from attacks.stored_state.replays import replay_everything
from attacks.stored_state.world import built

from kvward.seal import BlockSealer, OpenRefusal
from kvward.seal import envelope as envelope_module
from kvward.seal.xaes import XAES256GCM
from kvward.store import ScopedStore

pytestmark = pytest.mark.timeout(240)


def attack(folder: Path, num_mutations: int, *, seed: int, files: bool = False) -> Tally:
    with built(folder, seed=seed, files=files) as world:
        return Campaign(world, seed=seed).run(num_mutations, progress=lambda _: None)


def complaints(tally: Tally) -> list[str]:
    return [*tally.accepted, *tally.crashed, *tally.unexplained][:5]


def test_twenty_thousand_mutations_are_refused_counted_and_look_alike(tmp_path: Path) -> None:
    tally = attack(tmp_path, 18_000, seed=11)
    assert complaints(tally) == []
    assert set(tally.applied) == {mutation.name for mutation in all_mutations()}
    assert min(tally.applied.values()) > 30
    assert tally.num_refused == tally.num_applied >= 18_000
    seen = {reason for found in tally.reasons.values() for reason in found}
    assert seen == {reason.value for reason in OpenRefusal}


def test_files_changed_on_disk_are_refused(tmp_path: Path) -> None:
    tally = attack(tmp_path, 2_000, seed=12, files=True)
    assert complaints(tally) == []
    assert tally.num_refused == tally.num_applied >= 2_000


def test_old_copies_do_not_open_where_they_must_not() -> None:
    tally = replay_everything(seed=13)
    assert complaints(tally) == []
    assert min(tally.applied.values()) > 50
    assert set(tally.reasons["past its age"]) == {"expired"}
    assert set(tally.reasons["from another deployment"]) == {"other-key"}
    assert set(tally.reasons["after the scope was erased"]) == {"other-epoch"}
    assert set(tally.reasons["another layout of the same size"]) == {"not-authentic"}


def _accepted(folder: Path) -> set[str]:
    """Return which attacks win against whatever was broken."""
    tally = attack(folder, 6_000, seed=14)
    replays = replay_everything(seed=14)
    return {sentence.partition(":")[0] for sentence in [*tally.accepted, *replays.accepted]}


def test_control_without_the_name_in_the_associated_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = envelope_module.build_aad

    def nameless(suite: Any, header: bytes, *, name: bytes, layout_digest: bytes) -> bytes:
        return build(suite, header, name=bytes(len(name)), layout_digest=layout_digest)

    monkeypatch.setattr(envelope_module, "build_aad", nameless)
    won = _accepted(tmp_path)
    assert {"block of another position", "block of another model"} <= won
    assert "another part of the same block" in won
    assert "bit of the ciphertext" not in won


def test_control_without_the_layout_in_the_associated_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = envelope_module.build_aad

    def shapeless(suite: Any, header: bytes, *, name: bytes, layout_digest: bytes) -> bytes:
        return build(suite, header, name=name, layout_digest=bytes(len(layout_digest)))

    monkeypatch.setattr(envelope_module, "build_aad", shapeless)
    assert _accepted(tmp_path) == {"another layout of the same size"}


def test_control_without_the_header_in_the_associated_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = envelope_module.build_aad

    def headless(suite: Any, header: bytes, *, name: bytes, layout_digest: bytes) -> bytes:
        return build(suite, bytes(len(header)), name=name, layout_digest=layout_digest)

    monkeypatch.setattr(envelope_module, "build_aad", headless)
    assert "made a second later" in _accepted(tmp_path)


def test_control_without_the_check_of_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = BlockSealer._check

    def ageless(self: BlockSealer, sealed: memoryview, plain_bytes: int, lifetime: Any) -> Any:
        always = type(lifetime)(oldest_unix_s=0, newest_unix_s=2**64)
        return check(self, sealed, plain_bytes, always)

    monkeypatch.setattr(BlockSealer, "_check", ageless)
    assert {"past its age", "from the future"} <= _accepted(tmp_path)


def test_control_without_authentication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def believing(
        self: XAES256GCM, nonce: bytes, ciphertext: Any, associated_data: bytes, out: Any
    ) -> None:
        out[:] = ciphertext[:-16]

    monkeypatch.setattr(XAES256GCM, "open_into", believing)
    assert {"bit of the ciphertext", "bit of the tag", "body of another block"} <= _accepted(
        tmp_path
    )


def test_control_that_leaves_bytes_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = ScopedStore.load

    def unwiped(self: ScopedStore, chain_hashes: Any, staging: Any, *, parts: Any) -> list[bool]:
        loaded = load(self, chain_hashes, staging, parts=parts)
        staging[-1] = 1
        return loaded

    monkeypatch.setattr(ScopedStore, "load", unwiped)
    tally = attack(tmp_path, 200, seed=14)
    assert any("left bytes behind" in sentence for sentence in tally.accepted)


def test_control_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(sealed: Any) -> Any:
        raise IndexError("out of range")

    monkeypatch.setattr(envelope_module, "parse_unverified_header", raising)
    tally = attack(tmp_path, 200, seed=14)
    assert any("IndexError" in sentence for sentence in tally.crashed)
