"""Drive the lab's scheduler through a schedule and hold every answer against the plain model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvward.lab.behaviour import Behaviour
from kvward.lab.interface import (
    EngineOptions,
    FinishReason,
    GenerationRequest,
    LlamaConfig,
    LlamaWeights,
    SamplingParams,
    TokenEvent,
    Ward,
)
from kvward.lab.media import Picture, as_seen
from kvward.lab.scheduler import Scheduler
from kvward.lab.variants import Variants
from lab_models import plain_logits

# Defects that a ward inside the engine mends, whatever else is planted.
WARD_MENDS = ("early-publish", "reuse-in-flight", "scope-missing")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request, when it comes, and when its client goes away."""

    prompt: tuple[int, ...]
    max_tokens: int
    arrives: int
    salt: str | None = None
    leaves: int | None = None
    adapter: str | None = None
    pictures: tuple[Picture, ...] = ()
    slot_id: int | None = None


@dataclass(kw_only=True)
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    cached_tokens: int = 0
    reason: FinishReason | None = None


def run_schedule(
    weights: LlamaWeights,
    config: LlamaConfig,
    options: EngineOptions,
    asks: Sequence[Ask],
    *,
    behaviour: Behaviour,
    ward: Ward | None,
    variants: Variants | None = None,
    at_moment: Mapping[int, Callable[[Scheduler], None]] | None = None,
) -> tuple[list[Answer], Scheduler]:
    scheduler = Scheduler(
        weights,
        config,
        options,
        behaviour=behaviour,
        ward=ward,
        manifest_digest=b"test",
        variants=variants,
    )
    answers = [Answer() for _ in asks]

    def listener(answer: Answer):
        def listen(event: TokenEvent) -> None:
            answer.cached_tokens = event.cached_tokens
            answer.reason = event.finish_reason
            if event.token_id is not None:
                answer.tokens.append(event.token_id)
                answer.logprobs.append(dict(event.top_logprobs or ()))

        return listen

    moment = 0
    while moment <= max(ask.arrives for ask in asks) or scheduler.has_work:
        if at_moment is not None and moment in at_moment:
            at_moment[moment](scheduler)
        for number, ask in enumerate(asks):
            if ask.arrives == moment:
                request = GenerationRequest(
                    request_id=str(number),
                    prompt_token_ids=ask.prompt,
                    sampling=SamplingParams(
                        max_tokens=ask.max_tokens, top_logprobs=config.vocab, ignore_eos=True
                    ),
                    cache_salt=ask.salt,
                    adapter=ask.adapter,
                    pictures=ask.pictures,
                    slot_id=ask.slot_id,
                )
                scheduler.check(request)
                scheduler.submit(request, listener(answers[number]))
            if ask.leaves == moment:
                scheduler.cancel(str(number))
        scheduler.step()
        moment += 1
        assert moment < 5_000, "the schedule does not come to an end"
    return answers, scheduler


def largest_error(weights: LlamaWeights, config: LlamaConfig, ask: Ask, answer: Answer) -> float:
    """Largest difference of any logprob from the plain model's, over all generated tokens."""
    if not answer.tokens:
        return 0.0
    context = as_seen([*ask.prompt, *answer.tokens[:-1]], ask.pictures, vocab=config.vocab)
    plain = plain_logits(weights, config, context)[len(ask.prompt) - 1 :].astype(np.float64)
    peak = plain.max(1, keepdims=True)
    plain -= peak + np.log(np.exp(plain - peak).sum(1, keepdims=True))
    seen = np.array([[row[i] for i in range(config.vocab)] for row in answer.logprobs])
    return float(np.abs(seen - plain).max())
