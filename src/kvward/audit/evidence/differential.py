"""What answers under load show against a reference that no engine took part in."""

from __future__ import annotations

from collections.abc import Sequence

from kvward.audit.canary.codebook import Session
from kvward.audit.canary.reference import CanaryReference
from kvward.audit.decide.differential import DifferentialEvidence
from kvward.audit.detectors.differential import (
    MAX_MARGIN_NATS,
    Deviation,
    choose_margin,
    measure,
    read_deviation,
)
from kvward.audit.evidence.asked import Asked
from kvward.audit.evidence.finding import finding_of
from kvward.audit.evidence.load import READ_ARMS, load_trials
from kvward.audit.exchange import Ending
from kvward.audit.history import CONTROL_ARMS, Arm, Trial
from kvward.audit.plan import BLOCK_TOKENS, Plan
from kvward.audit.prompts import derive_random, write_canary_prompt
from kvward.audit.sessions import audit_sessions
from kvward.audit.verdict import Control

_MIN_ALONE = 0.9
_NUM_SIMULATED = 200
_TOP = 20


def differential_evidence(
    plan: Plan,
    trials: Sequence[Trial],
    asked: Asked,
    *,
    reuse_seen: bool | None,
) -> DifferentialEvidence:
    """Compare every finished answer of the content phase with what it should be.

    Args:
        reuse_seen: Whether the run showed any reuse; None when the target does not tell.
    """
    reference = CanaryReference()
    alone: list[float] = []
    read: list[tuple[Trial, Deviation]] = []
    for trial in trials:
        if trial.scope is not None or trial.ending is not Ending.DONE:
            continue
        if trial.arm not in READ_ARMS | CONTROL_ARMS:
            continue
        deviation = read_deviation(
            trial.top_logprobs,
            trial.text,
            prompt=asked.words(trial),
            reference=reference,
        )
        if trial.arm is Arm.CONTROL_WRITE:
            alone.append(float("inf") if deviation.nats is None else deviation.nats)
        read.append((trial, deviation))
    margin = choose_margin(alone)
    agreeing = sum(nats <= min(margin, MAX_MARGIN_NATS) for nats in alone)
    findings = tuple(
        finding_of(
            trial,
            deviation_nats=round(deviation.nats, 4),
        )
        for trial, deviation in read
        if deviation.nats is not None and deviation.nats > margin
    )
    return DifferentialEvidence(
        trials=load_trials(plan, trials, with_controls=True),
        num_read=sum(deviation.nats is not None for _, deviation in read),
        num_unreadable=sum(deviation.nats is None for _, deviation in read),
        findings=findings,
        margin_nats=margin,
        alone=Control(
            name="answers to requests alone agree with the reference",
            seen=agreeing,
            tried=len(alone),
            held=bool(alone) and agreeing / len(alone) >= _MIN_ALONE and margin <= MAX_MARGIN_NATS,
        ),
        reuse_seen=reuse_seen,
        simulated=_simulate(plan, audit_sessions(plan), reference, margin),
    )


def _simulate(
    plan: Plan, sessions: Sequence[Session], reference: CanaryReference, margin: float
) -> Control:
    """Exchange one block of prompts by another session's, and count what would be seen."""
    random = derive_random(plan.seed, "exchanged blocks")
    seen = 0
    for number in range(_NUM_SIMULATED):
        one, other = random.permutation(len(sessions))[:2]
        length = BLOCK_TOKENS * int(random.integers(3, 25))
        voice = sessions[one].voice
        own = [voice[int(i)] for i in random.integers(len(voice), size=length)]
        start = BLOCK_TOKENS * int(random.integers(length // BLOCK_TOKENS))
        theirs = write_canary_prompt(
            plan.seed, sessions[other], num_words=length, nonce=number
        ).words
        mixed = [*own[:start], *theirs[start : start + BLOCK_TOKENS], *own[start + BLOCK_TOKENS :]]
        answer = sorted(reference.logprobs(mixed).items(), key=lambda item: -item[1])[:_TOP]
        seen += measure(dict(answer), reference.logprobs(own)) > margin
    return Control(
        name="one block of another session exchanged, worked out",
        seen=seen,
        tried=_NUM_SIMULATED,
        held=seen > 0,
    )
