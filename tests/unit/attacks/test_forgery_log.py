"""Forged logs do not verify; and a verifier that leaves a check out is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attacks.forgery_log.campaign import PROOFS, Campaign
from attacks.forgery_log.forgeries import BY_KNOWN, FORGERIES

from kvward.ledger import checkpoint, proof, verify
from kvward.ledger.note import NoteVerifier

KINDS = len(FORGERIES) + len(PROOFS)


def test_no_forgery_verifies(tmp_path: Path) -> None:
    report = Campaign(tmp_path, seed=7).run(4 * KINDS)
    assert (dict(report.wrong), report.examples) == ({}, [])
    assert set(report.applied) == {*FORGERIES, *PROOFS}
    assert report.refused.total() == report.applied.total() == 4 * KINDS
    # Each of them verifies where nobody kept a checkpoint.
    assert report.only_by_known == sum(report.applied[kind] for kind in BY_KNOWN)
    assert report.controls >= 4


BLIND: dict[str, tuple[object, str, Callable[..., object]]] = {
    "signatures": (NoteVerifier, "verify", lambda *_: True),
    "tiles": (verify._Walk, "_check_tile", lambda *_: None),
    "proofs": (proof, "verify_inclusion", lambda *_: None),
}


@pytest.mark.parametrize("name", BLIND)
def test_a_verifier_that_leaves_a_check_out_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    place, attribute, blind = BLIND[name]
    campaign = Campaign(tmp_path, seed=7)
    monkeypatch.setattr(place, attribute, blind)
    report = campaign.run(3 * KINDS)
    assert report.wrong["verified"] or report.wrong["crashed"]
    assert not report.wrong["genuine log refused"]


def test_a_verifier_that_forgets_who_signed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = Campaign(tmp_path, seed=7)
    monkeypatch.setattr(
        verify,
        "open_checkpoint",
        lambda data, verifiers: checkpoint.parse_unverified_checkpoint(data),
    )
    assert campaign.run(2 * KINDS).wrong["verified"] >= 2
