"""Where requests come in: refused when they can never run, else given a scope and names."""

from __future__ import annotations

from collections.abc import Callable

from kvward.blocks.inputs import InputKind, PromptInput, check_inputs
from kvward.errors import UsageError
from kvward.lab.behaviour import Behaviour
from kvward.lab.interface import (
    EngineOptions,
    GenerationRequest,
    LlamaConfig,
    SamplingParams,
    TokenEvent,
    Ward,
)
from kvward.lab.media import Picture, as_seen
from kvward.lab.naming import name_blocks
from kvward.lab.sampling import request_random
from kvward.lab.sequence import Sequence
from kvward.lab.slots import SlotShelf
from kvward.lab.variants import Variants


class Intake:
    """Makes sequences of requests.

    Args:
        ward: Says under which scope a request runs; None for an engine without one.
        variants: What requests can run on.
        slots: That requests can name.
    """

    def __init__(
        self,
        config: LlamaConfig,
        options: EngineOptions,
        behaviour: Behaviour,
        *,
        ward: Ward | None,
        variants: Variants,
        slots: SlotShelf,
    ) -> None:
        self._config = config
        self._options = options
        self._behaviour = behaviour
        self._ward = ward
        self._variants = variants
        self._slots = slots

    @property
    def max_tokens(self) -> int:
        """Return how many tokens a request can have, prompt and answer together."""
        pool_tokens = self._options.num_blocks * self._options.block_tokens
        return min(self._config.max_context_tokens, pool_tokens)

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that can never run.

        Raises:
            UsageError: the prompt is empty, too long, or holds an unknown token, there is no such
                adapter or slot, pictures overlap, or a sampling parameter does not fit the model.
        """
        prompt = request.prompt_token_ids
        if not prompt:
            raise UsageError("The prompt is empty.")
        if min(prompt) < 0 or max(prompt) >= self._config.vocab:
            raise UsageError("The prompt holds a token that the model does not know.")
        if len(prompt) >= self.max_tokens:
            raise UsageError(
                f"The prompt has {len(prompt)} tokens; with one new token, "
                f"at most {self.max_tokens} fit."
            )
        self._variants.find(request.adapter)
        if request.slot_id is not None:
            self._slots.check(request.slot_id)
        placed = [_placed(picture) for picture in request.pictures]
        if check_inputs(placed, num_tokens=len(prompt)).reason is not None:
            raise UsageError("The pictures do not have places of their own in the prompt.")
        self._check_sampling(request.sampling)

    def open(self, request: GenerationRequest, on_event: Callable[[TokenEvent], None]) -> Sequence:
        """Begin a request that `check` has let through.

        Decides its scope, what it runs on, and where its prefix chain begins.
        """
        variant = self._variants.find(request.adapter)
        scope = self.scope_of(request.cache_salt)
        durable = None
        if self._ward is not None:
            durable = self._ward.durable(request.cache_salt, request.owner_tag)
        tokens = list(request.prompt_token_ids)
        return Sequence(
            request=request,
            on_event=on_event,
            scope=scope,
            variant=variant,
            seen_prompt=as_seen(tokens, request.pictures, vocab=self._config.vocab),
            names=name_blocks(
                request,
                tokens,
                scope=scope,
                variant=variant,
                block_tokens=self._options.block_tokens,
                behaviour=self._behaviour,
            ),
            random=request_random(request.sampling),
            tokens=tokens,
            durable=durable,
        )

    def scope_of(self, cache_salt: str | None) -> str | None:
        """Return the scope that a salt stands for; the ward's, where there is one."""
        return cache_salt if self._ward is None else self._ward.admit(cache_salt)

    def _check_sampling(self, sampling: SamplingParams) -> None:
        if sampling.max_tokens < 1:
            raise UsageError("At least one token is generated.")
        if not 0 <= (sampling.top_logprobs or 0) <= self._config.vocab:
            raise UsageError("There are not that many tokens to give logprobs of.")
        if any(not 0 <= token_id < self._config.vocab for token_id in sampling.logit_bias):
            raise UsageError("A logit bias names a token that the model does not know.")


def _placed(picture: Picture) -> PromptInput:
    return PromptInput(
        kind=InputKind.IMAGE,
        digest=bytes(32),  # only the place is looked at
        first_token=picture.first_token,
        num_tokens=picture.num_tokens,
    )
