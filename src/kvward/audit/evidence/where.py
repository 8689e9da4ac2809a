"""Which of the things that differed between writer and reader was not told apart.

The pairs of a scope are of several kinds, and go by several routes to several addresses. When all
the reuse is in some of them and none in others, that names what a key leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.pairs import Change, Pair, iter_pairs
from kvward.audit.plan import Plan
from kvward.terms import ProbeScope


def describe_where(
    plan: Plan, trials: Sequence[Trial], scope: ProbeScope, hits: Collection[int]
) -> str:
    """Return where primed probes were told of reuse and where they were not; empty where it is
    everywhere alike, or the plan has one kind, route and address only.

    Args:
        hits: Numbers of the primed probes that were told of reuse.
    """
    if not hits:
        return ""
    probes = [
        trial
        for trial in trials
        if trial.scope is scope
        and trial.arm is Arm.PROBE_PRIMED
        and trial.ending is Ending.DONE
        and trial.pair is not None
    ]
    kinds = _kinds(plan, scope)
    views: tuple[Callable[[Trial], str], ...] = (
        lambda trial: kinds.get(trial.pair, "") if trial.pair is not None else "",
        lambda trial: f"by {trial.route.value}",
        lambda trial: "" if trial.replica is None else f"at replica {trial.replica}",
    )
    return "; ".join(text for view in views if (text := _contrast(probes, hits, view)))


def _contrast(probes: Sequence[Trial], hits: Collection[int], view: Callable[[Trial], str]) -> str:
    """Return hits by what a view tells apart, if some of it has none and some has."""
    counts: dict[str, list[bool]] = {}
    for probe in probes:
        counts.setdefault(view(probe), []).append(probe.number in hits)
    shares = {name: sum(told) for name, told in counts.items() if name}
    if len(shares) < 2 or all(shares.values()) or not any(shares.values()):
        return ""
    in_order = sorted(shares, key=lambda name: (-shares[name], name))
    return ", ".join(f"{shares[name]} of {len(counts[name])} {name}" for name in in_order)


def _kinds(plan: Plan, scope: ProbeScope) -> Mapping[int, str]:
    """Return what each pair of a scope was about, in words, where there are several things."""
    # What a pair is about does not depend on how long prompts are, and short ones are made faster.
    short = replace(plan, prompt_tokens=1, protected_words=1)
    return {pair.number: _kind(plan, pair) for pair in iter_pairs(short) if pair.scope is scope}


def _kind(plan: Plan, pair: Pair) -> str:
    match pair.scope, pair.change:
        case ProbeScope.S4, Change.RELOAD:
            return "with other weights under one name"
        case ProbeScope.S4, _ if pair.writer != pair.reader:
            return "where salt and model together read alike"
        case ProbeScope.S4, _ if pair.models[1] is None:
            return f"of {plan.other_model} for {plan.model}"
        case ProbeScope.S4, _:
            return f"of {plan.model} for {plan.other_model}"
        case ProbeScope.S6, Change.EXPIRE:
            return "past their lifetime"
        case ProbeScope.S6, _:
            return "after an erasure"
        case ProbeScope.S7, _ if pair.number % 2:
            return "with another shape of one picture"
        case ProbeScope.S7, _:
            return "with another picture"
        case ProbeScope.S5, _ if pair.restores:
            return "with a saved state"
        case ProbeScope.S5, _ if pair.number % 2:
            return "under what the target disclosed, if anything"
        case ProbeScope.S5, _:
            return "under a scope of the caller's own"
        case _:
            return ""
