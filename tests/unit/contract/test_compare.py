"""Pairs of contracts, each labelled clause by clause before the comparison is asked."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from contract_documents import contract_of, example, with_value
from kvward.contract import Direction, compare
from kvward.terms import ClauseId

W, N, U = Direction.WIDER, Direction.NARROWER, Direction.UNKNOWN
ROUTE = {"route": "embeddings", "model": "*", "level": "request"}
CHAT = {"route": "chat_completions", "model": "m"}
PREFIX = {"name": "manual", "digest": "sha256:" + "ab" * 32}
OTHER = {"name": "manual", "digest": "sha256:" + "cd" * 32}
LAPSE = {"clause": "erasure", "what": "The disk tier is swept by hand.", "until": "2027-01-31"}
LATER = {**LAPSE, "until": "2027-02-28"}
QUIET = {"channel": "metadata", "reason": "The provider's counters are shown."}

Changes = list[tuple[str, object]]
Label = dict[str | None, Direction]

# Hand-made: what is changed, and which clauses move which way; all others are equal.
PAIRS: list[tuple[str, Changes, Label]] = [
    ("nothing", [], {}),
    ("a new version", [("version", 2), ("published", "2026-12-04")], {}),
    ("an earlier end", [("valid_until", "2027-01-03")], {None: W}),
    ("a later end", [("valid_until", "2027-06-03")], {None: N}),
    ("wider route", [("clauses.scope.routes.0.level", "tenant")], {"scope": W}),
    ("wider narrowest span only", [("clauses.scope.routes.0.level", "user")], {"scope": W}),
    ("narrower route", [("clauses.scope.routes.0.level", "request")], {"scope": N}),
    ("no leading span", [("clauses.scope.routes.0.leading_level", None)], {"scope": N}),
    ("leading span as the rest", [("clauses.scope.routes.1.leading_level", "request")], {}),
    ("public leading span", [("clauses.scope.routes.0.leading_level", "public")], {"scope": W}),
    ("one route more", [("clauses.scope.routes.2", ROUTE)], {"scope": W}),
    ("one route less", [("clauses.scope.routes.1", None)], {"scope": N}),
    (
        "a model of its own, narrower",
        [("clauses.scope.routes.2", {**CHAT, "level": "request"})],
        {"scope": N},
    ),
    (
        "a model of its own, wider",
        [("clauses.scope.routes.2", {**CHAT, "level": "tenant"})],
        {"scope": W},
    ),
    (
        "a model of its own, as before",
        [
            (
                "clauses.scope.routes.2",
                {
                    "route": "chat_completions",
                    "model": "m",
                    "level": "conversation",
                    "leading_level": "tenant",
                },
            )
        ],
        {},
    ),
    (
        "one up and one down",
        [("clauses.scope.routes.0.level", "request"), ("clauses.scope.routes.1.level", "tenant")],
        {"scope": W},
    ),
    ("tenant out of the key", [("clauses.scope.dimensions.1", None)], {"scope": W}),
    ("user into the key", [("clauses.scope.dimensions.6", "user")], {"scope": N}),
    ("a dimension for another", [("clauses.scope.dimensions.1", "user")], {"scope": W}),
    ("public prefix", [("clauses.scope.public", [PREFIX])], {"scope": W}),
    ("dimensions in another order", [("clauses.binding.dimensions", None),
     ("clauses.binding.dimensions", example()["clauses"]["binding"]["dimensions"][::-1])], {}),
    ("caller sets the scope", [("clauses.origin.set_by", "caller")], {"origin": W}),
    ("one kind of identity more", [("clauses.origin.identity.1", "jwt")], {"origin": W}),
    ("identity for another", [("clauses.origin.identity", ["mtls"])], {"origin": W}),
    ("adapter unbound", [("clauses.binding.dimensions.1", None)], {"binding": W}),
    ("bad state served", [("clauses.untrusted.on_bad_state", "serve")], {"untrusted": W}),
    ("bad state refused", [("clauses.untrusted.on_bad_state", "refuse")], {"untrusted": U}),
    ("plain at rest", [("clauses.secrecy.encrypted", False)], {"secrecy": W}),
    ("lives longer", [("clauses.lifetime.max_age_s", 86_401)], {"lifetime": W}),
    ("lives shorter", [("clauses.lifetime.max_age_s", 60)], {"lifetime": N}),
    ("erased later", [("clauses.erasure.within_s", 3_600)], {"erasure": W}),
    (
        "erased sooner without a receipt",
        [("clauses.erasure.within_s", 5), ("clauses.erasure.receipt", False)],
        {"erasure": W},
    ),
    ("tolerates more", [("clauses.metadata.tolerated", [QUIET])], {"metadata": W}),
    ("no share", [("clauses.interference.protected_share", None),
     ("clauses.interference.protected_share", 0.05)], {"interference": W}),
    ("larger share", [("clauses.interference.protected_share", 0.2)], {"interference": N}),
    ("shares when it fails", [("clauses.failure.on_loss", "share")], {"failure": W}),
    (
        "tested more often, more loosely",
        [("clauses.evidence.every_days", 7), ("clauses.evidence.rate_at_most", 0.001)],
        {"evidence": W},
    ),
    ("a clause less", [("clauses.secrecy", None)], {"secrecy": W}),
    ("an exception", [("exceptions", [LAPSE])], {"erasure": W}),
    ("disk only tested", [("clauses.scope.tiers.disk", "tested-only")], {"scope": W}),
    ("device covered", [("clauses.lifetime.tiers.device", "enforced")], {"lifetime": N}),
]  # fmt: skip


def changed(base: dict[str, Any], changes: Changes) -> dict[str, Any]:
    for path, value in changes:
        base = with_value(base, path, value)
    return base


def directions(old: dict[str, Any], new: dict[str, Any]) -> Label:
    rows = compare(contract_of(old), contract_of(new))
    return {row.clause: row.direction for row in rows if row.direction is not Direction.EQUAL}


@pytest.mark.parametrize(("changes", "label"), [pytest.param(c, w, id=n) for n, c, w in PAIRS])
def test_hand_made_pair_moves_as_labelled(changes: Changes, label: Label) -> None:
    base = example()
    assert directions(base, changed(base, changes)) == label


MIRROR = {W: N, N: W, U: U}


@pytest.mark.parametrize(
    ("changes", "label"),
    [pytest.param(c, w, id=n) for n, c, w in PAIRS if n not in {
        # Both ways at once: wider in either direction of reading.
        "one up and one down", "a dimension for another", "identity for another",
        "erased sooner without a receipt", "tested more often, more loosely",
    }],
)  # fmt: skip
def test_hand_made_pair_read_backwards_moves_the_other_way(changes: Changes, label: Label) -> None:
    base = example()
    backwards = directions(changed(base, changes), base)
    assert backwards == {clause: MIRROR[way] for clause, way in label.items()}


def test_replaced_public_prefix_is_wider_and_a_renamed_one_is_not() -> None:
    base = changed(example(), [("clauses.scope.public", [PREFIX])])
    assert directions(base, changed(base, [("clauses.scope.public", [OTHER])])) == {"scope": W}
    renamed = {**PREFIX, "name": "handbook"}
    assert directions(base, changed(base, [("clauses.scope.public", [renamed])])) == {}


def test_exception_that_lasts_longer_is_wider_and_one_that_went_is_narrower() -> None:
    base = changed(example(), [("exceptions", [LAPSE])])
    assert directions(base, changed(base, [("exceptions", [LATER])])) == {"erasure": W}
    assert directions(base, changed(base, [("exceptions", [])])) == {"erasure": N}


def test_new_tier_is_wider_where_uncovered_and_for_a_person_to_judge_where_it_is_covered() -> None:
    new = changed(
        example(),
        [("tiers.2", "remote"), ("clauses.scope.tiers.remote", "enforced")],
    )  # fmt: skip
    label = directions(example(), new)
    assert label.pop("scope") is U
    assert set(label.values()) == {W}
    assert set(label) == {*ClauseId} - {"scope", "evidence"}


def _number(path: str, factor: float, way: Direction) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def mutate(value: dict[str, Any]) -> dict[str, Any]:
        place: Any = value
        for step in path.split("."):
            place = place[step]
        return with_value(value, path, type(place)(place * factor) + (way is W))

    return mutate


def _weaker(clause: str, tier: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda value: with_value(value, f"clauses.{clause}.tiers.{tier}", "not-covered")


def _gone(clause: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda value: with_value(value, f"clauses.{clause}", None)


# Mutations, each of one clause, each with the way it moves whatever stands beside it.
MUTATIONS: list[tuple[str, Direction, Callable[[dict[str, Any]], dict[str, Any]]]] = [
    ("lifetime", W, _number("clauses.lifetime.max_age_s", 3, W)),
    ("lifetime", N, _number("clauses.lifetime.max_age_s", 0.5, N)),
    ("erasure", W, _number("clauses.erasure.within_s", 2, W)),
    ("erasure", N, _number("clauses.erasure.within_s", 0.25, N)),
    ("evidence", W, _number("clauses.evidence.every_days", 2, W)),
    ("evidence", N, _number("clauses.evidence.rate_at_most", 0.1, N)),
    ("secrecy", W, lambda v: with_value(v, "clauses.secrecy.names_keyed", False)),
    ("failure", W, lambda v: with_value(v, "clauses.failure.on_loss", "share")),
    ("metadata", W, lambda v: with_value(v, "clauses.metadata.visible.1", "all-usage")),
    ("metadata", N, lambda v: with_value(v, "clauses.metadata.visible", [])),
    ("origin", W, lambda v: with_value(v, "clauses.origin.identity", ["api-key", "jwt", "mtls"])),
    ("binding", W, lambda v: with_value(v, "clauses.binding.dimensions.0", None)),
    ("interference", W, lambda v: with_value(v, "clauses.interference.protected_share", 0.01)),
    ("untrusted", W, _weaker("untrusted", "disk")),
    ("scope", W, _weaker("scope", "device")),
    ("interference", W, _gone("interference")),
    ("failure", W, _gone("failure")),
]


@pytest.mark.parametrize("seed", range(40))
def test_mutated_pair_moves_as_its_mutations(seed: int) -> None:
    """One to four mutations of different clauses, on an example shortened at random."""
    rng = random.Random(seed)
    chosen: dict[str, tuple[Direction, Callable[[dict[str, Any]], dict[str, Any]]]] = {}
    for clause, way, mutate in rng.sample(MUTATIONS, rng.randint(1, 4)):
        chosen.setdefault(clause, (way, mutate))
    base = example()
    for clause in rng.sample(sorted({*ClauseId} - {*chosen}), 3):
        base = with_value(base, f"clauses.{clause}", None)
    new = base
    for _, mutate in chosen.values():
        new = mutate(new)
    assert directions(base, new) == {clause: way for clause, (way, _) in chosen.items()}
