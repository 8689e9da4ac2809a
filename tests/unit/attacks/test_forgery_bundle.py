"""Some hundred forged bundles of every kind; the committed result has 50,000."""

from __future__ import annotations

import json
from pathlib import Path

from attacks.forgery_bundle.campaign import Campaign, iter_forgeries
from attacks.forgery_bundle.forgery import Forged, Forgery
from attacks.forgery_bundle.world import World

RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "forgery-bundle.json"


def test_no_forged_bundle_verifies() -> None:
    report = Campaign(World(), seed=5).run(4 * len(iter_forgeries()))
    assert not report.wrong, report.examples
    assert report.applied.total() == 4 * len(iter_forgeries())
    assert set(report.applied) == {forgery.label for forgery in iter_forgeries()}
    assert report.controls > 0


def test_campaign_says_it_when_a_forgery_gets_through() -> None:
    world = World()
    campaign = Campaign(world, seed=5)
    # The genuine bundle, passed off as a forgery of another world's.
    genuine = Forged(files=dict(world.files), known=world.known)
    world.files = {}
    campaign._try(Forgery(label="none", forge=lambda dice, world: genuine))
    assert campaign.report.wrong == {"verified": 1}


def test_committed_result_is_one_without_a_forgery_that_got_through() -> None:
    value = json.loads(RESULT.read_text())
    assert value["mutations"] == value["refused"] >= 50_000
    assert value["wrong"] == {}
    assert value["genuine_bundles_verified"] >= 500
