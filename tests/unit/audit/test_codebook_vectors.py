"""The codebook gives the published words: a history must be readable years later, elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvward.audit.canary.codebook import Codebook
from kvward.audit.canary.words import WORDS

VECTORS = json.loads(
    (Path(__file__).parents[3] / "vectors" / "canary-codebook-v1.json").read_text(encoding="utf-8")
)


def test_words_are_the_published_ones_in_their_order() -> None:
    assert " ".join(WORDS) == VECTORS["words"]


@pytest.mark.parametrize("case", VECTORS["sessions"], ids=lambda case: case["comment"])
def test_session_has_the_published_words(case: dict[str, Any]) -> None:
    book = Codebook(seed=int(case["seed"]))
    session = book.session(tenant=case["tenant"], conversation=case["conversation"])
    assert " ".join(session.canary) == case["canary"]
    assert " ".join(session.voice) == case["voice"]


def test_decoys_are_the_published_ones() -> None:
    case = VECTORS["decoys"]
    found = Codebook(seed=int(case["seed"])).decoys(len(case["canaries"]))
    assert [" ".join(sorted(decoy)) for decoy in found] == case["canaries"]


def test_names_that_run_together_alike_are_different_sessions() -> None:
    canaries = [case["canary"] for case in VECTORS["sessions"]]
    assert len({frozenset(canary.split()) for canary in canaries}) == len(canaries)
