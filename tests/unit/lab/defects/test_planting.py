"""Names and rates become a behaviour that strikes as often as it should, and repeatably."""

import json
import math
from itertools import pairwise

import pytest
from click.testing import CliRunner

from kvward.cli.lab import command
from kvward.errors import ConfigError
from kvward.lab.behaviour import SOUND, Slip
from kvward.lab.defects import DEFECTS, plant_defects

CLASSES = {
    "K-SCOPE", "K-ENCODE", "K-HASH", "K-CONTENT", "K-ADAPTER", "K-STALE", "L-INFLIGHT", "L-EARLY",
    "L-ALLOC", "G-GEOM", "S-SLOT", "S-ABA", "S-SPEC", "E-OPEN", "A-ERASE", "R-RESP", "R-STREAM",
    "O-TIME", "O-META", "A-TRUST",
}  # fmt: skip
WITH_RATE = sorted(name for name, defect in DEFECTS.items() if defect.takes_rate)
WITHOUT_RATE = sorted(set(DEFECTS) - set(WITH_RATE))


@pytest.mark.parametrize("name", WITH_RATE)
@pytest.mark.parametrize("rate", [0.0003, 0.01, 0.5])
def test_rate_is_met_within_five_standard_deviations(name: str, rate: float) -> None:
    behaviour = plant_defects([f"{name}:{rate}"], DEFECTS, seed=11)
    asked = 100_000
    slip = DEFECTS[name].slip
    struck = sum(behaviour.slips(slip) for _ in range(asked))
    assert abs(struck - asked * rate) < 5 * math.sqrt(asked * rate * (1 - rate))
    assert (behaviour.opportunities[slip], behaviour.strikes[slip]) == (asked, struck)


def test_strikes_are_a_random_subset_and_not_every_nth() -> None:
    behaviour = plant_defects(["reuse-in-flight:0.01"], DEFECTS)
    at = [n for n in range(100_000) if behaviour.slips(Slip.REUSE_IN_FLIGHT)]
    gaps = [b - a for a, b in pairwise(at)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert 0.85 < spread / mean < 1.15  # geometric: the spread is the mean


def test_seed_decides_and_other_defects_do_not() -> None:
    def strikes(*names: str, seed: int) -> list[bool]:
        behaviour = plant_defects(names, DEFECTS, seed=seed)
        behaviour.slips(Slip.EARLY_PUBLISH)
        return [behaviour.slips(Slip.REUSE_IN_FLIGHT) for _ in range(500)]

    first = strikes("reuse-in-flight:0.1", seed=1)
    assert strikes("reuse-in-flight:0.1", "early-publish:0.5", seed=1) == first
    assert strikes("reuse-in-flight:0.1", seed=2) != first


def test_decided_once_for_each_of_many() -> None:
    behaviour = plant_defects(["reuse-in-flight:0.5"], DEFECTS)
    decided: dict[Slip, bool] = {}
    answers = {behaviour.slips_once(Slip.REUSE_IN_FLIGHT, decided) for _ in range(50)}
    assert len(answers) == 1
    assert behaviour.opportunities[Slip.REUSE_IN_FLIGHT] == 1


@pytest.mark.parametrize("slip", Slip)
def test_sound_behaviour_never_slips(slip: Slip) -> None:
    assert not SOUND.has(slip)
    assert not SOUND.slips(slip)
    assert not SOUND.slips_once(slip, {})
    assert SOUND.opportunities[slip] == 0


def test_unknown_defect_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        plant_defects(["nothing"], DEFECTS)
    assert "scope-missing" in str(caught.value.hint)


@pytest.mark.parametrize("rate", ["0", "-1", "1.1", "nan", "", "often", "inf", "1/3"])
def test_impossible_rate_is_refused(rate: str) -> None:
    with pytest.raises(ConfigError, match="not a rate"):
        plant_defects([f"reuse-in-flight:{rate}"], DEFECTS)


@pytest.mark.parametrize("name", WITHOUT_RATE)
def test_defect_of_construction_takes_no_rate(name: str) -> None:
    with pytest.raises(ConfigError, match="takes no rate"):
        plant_defects([f"{name}:0.5"], DEFECTS)


def test_defect_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        plant_defects(["reuse-in-flight", "reuse-in-flight:0.1"], DEFECTS)


def test_every_slip_is_one_defect_that_says_all_about_itself() -> None:
    assert {defect.slip for defect in DEFECTS.values()} == set(Slip)
    assert {defect.failure_class for defect in DEFECTS.values()} == CLASSES
    for name, defect in DEFECTS.items():
        assert name == defect.name
        assert defect.channels
        assert defect.summary.endswith(".")
        assert defect.shows.endswith(".")
        assert defect.seen_in


@pytest.mark.parametrize("name", DEFECTS)
def test_start_is_understood_by_the_command_that_serves(name: str) -> None:
    start = [*DEFECTS[name].start, "--defect", name]
    serve = command.commands["serve"]  # type: ignore[attr-defined]  # a group has commands
    context = serve.make_context("serve", start)
    assert context.params["defects"] == (name,)


def test_listing_says_what_each_needs() -> None:
    listed = json.loads(CliRunner().invoke(command, ["defects", "--json"]).output)
    assert [row["name"] for row in listed] == list(DEFECTS)
    for row in listed:
        defect = DEFECTS[row["name"]]
        assert row["class"] == defect.failure_class
        assert row["channels"] == sorted(defect.channels)
        assert row["takes_rate"] is defect.takes_rate
        assert row["start"] == list(defect.start)
        assert row["arguments"] == ["lab", "serve", *row["start"], "--defect", row["name"]]
    text = CliRunner().invoke(command, ["defects"]).output
    for name, defect in DEFECTS.items():
        assert name + (":RATE" if defect.takes_rate else "") in text
