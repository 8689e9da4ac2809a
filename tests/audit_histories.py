"""Made-up histories for the judge: a clean one, and what can be done to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from kvward.audit.canary.codebook import Session
from kvward.audit.canary.reference import CanaryReference
from kvward.audit.canary.words import WORDS
from kvward.audit.dialogue import Dialogue, Fate
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.load import iter_steps
from kvward.audit.pairs import iter_pairs
from kvward.audit.plan import Plan, Sizes, Tier
from kvward.audit.planning import make_plan
from kvward.audit.prompts import Prompt, write_canary_prompt, write_turn_prompt
from kvward.audit.sessions import audit_sessions
from kvward.terms import Channel, ProbeScope, SharingLevel

Change = Callable[[Trial], Trial | None]


def small_plan(*, channels: list[Channel] | None = None, pairs: int = 40) -> Plan:
    return make_plan(
        url="http://127.0.0.1:1",
        model="canary",
        tenants=["a", "b"],
        tier=Tier.SMOKE,
        seed=7,
        channels=channels or list(Channel),
        declared_level=SharingLevel.CONVERSATION,
        clients=4,
        prompt_tokens=512,
        sizes=Sizes(content_outputs=120, control_outputs=40, pairs=pairs),
    )


def position(words: frozenset[str] | set[str]) -> tuple[tuple[str, float], ...]:
    """Top 20 of the canary model: present words at different heights, absent ones tied."""
    present = [(word, -float(n)) for n, word in enumerate(sorted(words))]
    absent = [(word, -9000.0) for word in WORDS if word not in words]
    return tuple((present + absent)[:20])


_REFERENCE = CanaryReference()


@lru_cache(maxsize=4096)
def answer(words: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """Top 20 of the canary model after these words."""
    values = sorted(_REFERENCE.logprobs(words).items(), key=lambda item: -item[1])
    return tuple(values[:20])


def iter_load(plan: Plan) -> Iterator[tuple[Arm, Session, Prompt, int]]:
    """Every request under load, and what a cache may report: turns extend what was asked before."""
    arms = {Arm.TWIN: (Arm.TWIN, Arm.TWIN), Arm.CANCEL: (Arm.CANCEL, Arm.RETRY)}
    for step in iter_steps(plan, audit_sessions(plan)):
        if isinstance(step, Dialogue):
            before = 0
            for version in step.asked:
                prompt = write_turn_prompt(step, version)
                cancelled = version.fate is Fate.CANCELLED
                cached = before // 16 * 16
                yield Arm.CANCEL if cancelled else Arm.TURN, step.session, prompt, cached
                before = before if version.fate is not Fate.KEPT else len(prompt.words)
        else:
            for arm in arms.get(step.arm, (step.arm,)):
                yield arm, step.session, step.prompt, 0


def clean_history(plan: Plan, *, change: Change = lambda trial: trial) -> list[Trial]:
    """Every planned trial as an isolating engine would answer it, passed through `change`."""
    random = np.random.default_rng(1)
    trials: list[Trial] = []

    def add(trial: Trial) -> None:
        number = len(trials)
        changed = change(replace(trial, number=number, start_ns=10 * number, total_ns=5))
        if changed is not None:
            trials.append(changed)

    base = {
        "number": 0,
        "ending": Ending.DONE,
        "status": 200,
        "start_ns": 0,
        "total_ns": 0,
        "text": "",
        "completion_tokens": 1,
        "response_ids": (),
        "error": None,
    }
    sessions = audit_sessions(plan)
    if plan.has_content:
        for number in range(plan.sizes.control_outputs):
            session = sessions[number % len(sessions)]
            prompt = write_canary_prompt(plan.seed, session, num_words=192, nonce=number)
            for arm in (Arm.CONTROL_WRITE, Arm.CONTROL_READ):
                add(
                    Trial(
                        **base,  # type: ignore[arg-type]
                        arm=arm,
                        tenant=session.tenant,
                        conversation=session.conversation,
                        prompt=prompt.recipe,
                        prompt_words=192,
                        own_words=tuple(sorted(prompt.own_words)),
                        ttft_ns=1,
                        top_logprobs=(answer(prompt.words),),
                        prompt_tokens=192,
                        cached_tokens=176 if arm is Arm.CONTROL_READ else 0,
                    )
                )
        for arm, session, prompt, cached in iter_load(plan):
            cancelled = arm is Arm.CANCEL
            add(
                Trial(
                    **(base | ({"ending": Ending.CANCELLED} if cancelled else {})),  # type: ignore[arg-type]
                    arm=arm,
                    tenant=session.tenant,
                    conversation=session.conversation,
                    prompt=prompt.recipe,
                    prompt_words=len(prompt.words),
                    own_words=tuple(sorted(prompt.own_words)),
                    ttft_ns=1,
                    top_logprobs=() if cancelled else (answer(prompt.words),),
                    prompt_tokens=len(prompt.words),
                    cached_tokens=cached,
                )
            )
    for pair in iter_pairs(plan):
        for arm in (Arm.PRIME, Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED):
            hit = pair.scope is ProbeScope.S0 and arm is Arm.PROBE_PRIMED
            time_ms = random.lognormal(1.0 if hit else 2.5, 0.2)
            conversation = f"{pair.scope.lower()}-{pair.number}"
            add(
                Trial(
                    **base,  # type: ignore[arg-type]
                    arm=arm,
                    tenant=pair.writer if arm is Arm.PRIME else pair.reader,
                    conversation=conversation,
                    scope=pair.scope,
                    pair=pair.number,
                    coin=pair.coin,
                    prompt=pair.prompts[0].recipe,
                    prompt_words=512,
                    own_words=(),
                    ttft_ns=int(1e6 * time_ms),
                    top_logprobs=(),
                    prompt_tokens=512,
                    cached_tokens=496 if hit else 0,
                )
            )
    return trials
