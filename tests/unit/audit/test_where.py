"""Where reuse is, and where it is not: said when that names what a key leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from audit_histories import clean_history, small_plan
from kvward.audit.evidence.where import describe_where
from kvward.audit.history import Arm, Trial
from kvward.audit.pairs import iter_pairs
from kvward.audit.plan import Plan, Route, Sizes, Tier
from kvward.audit.planning import make_plan
from kvward.terms import Channel, ProbeScope

PLAN = make_plan(
    url="u", model="m", tenants=["a", "b"], tier=Tier.SMOKE, seed=1, channels=[Channel.METADATA],
    declared_level=None, clients=1, prompt_tokens=64, other_model="ada", reloads=True, erases=True,
    lifetime_s=1.0, pictures=True, salted=True, run_nonce="n",
    sizes=Sizes(content_outputs=0, control_outputs=0, pairs=12),
)  # fmt: skip


def told(plan: Plan, scope: ProbeScope, hit: Callable[[int], bool]) -> str:
    """Describe a history in which the primed probes of some pairs were told of reuse."""
    trials = [t for t in clean_history(plan) if t.arm is Arm.PROBE_PRIMED and t.scope is scope]
    hits = {trial.number for trial in trials if hit(trial.pair or 0)}
    return describe_where(plan, trials, scope, hits)


def test_picture_that_differs_in_shape_alone_is_named() -> None:
    said = told(PLAN, ProbeScope.S7, lambda pair: pair % 2 == 1)
    assert said == "6 of 6 with another shape of one picture, 0 of 6 with another picture"


def test_kinds_of_other_models_are_told_apart() -> None:
    changed = {pair.number for pair in iter_pairs(PLAN)
               if pair.scope is ProbeScope.S4 and pair.change is not None}  # fmt: skip
    said = told(PLAN, ProbeScope.S4, lambda pair: pair in changed)
    assert said.startswith("4 of 4 with other weights under one name, 0 of ")
    assert "0 of 2 of ada for m" in said
    assert "0 of 4 where salt and model together read alike" in said


def test_erasure_and_lifetime_are_told_apart() -> None:
    said = told(PLAN, ProbeScope.S6, lambda pair: pair % 2 == 0)
    assert said == "6 of 6 after an erasure, 0 of 6 past their lifetime"


@pytest.mark.parametrize("hit", [lambda _: True, lambda _: False], ids=["all", "none"])
def test_nothing_is_said_where_all_are_alike(hit: Callable[[int], bool]) -> None:
    for scope in PLAN.pair_scopes:
        assert told(PLAN, scope, hit) == ""


def test_route_and_replica_are_named() -> None:
    plan = replace(small_plan(), routes=(Route.COMPLETIONS, Route.CHAT))

    def placed(trial: Trial) -> Trial:
        route = Route.CHAT if (trial.pair or 0) % 4 == 0 else Route.COMPLETIONS
        return replace(trial, route=route, replica=(trial.pair or 0) % 2)

    trials = clean_history(plan, change=placed)
    hits = {t.number for t in trials if t.arm is Arm.PROBE_PRIMED and t.route is Route.CHAT}
    said = describe_where(plan, trials, ProbeScope.S3, hits)
    assert said == (
        "10 of 10 by chat, 0 of 30 by completions; 10 of 20 at replica 0, 0 of 20 at replica 1"
    )
    assert describe_where(plan, [], ProbeScope.S3, hits) == ""
