"""From the logits of a step to the next tokens of a request, drafts verified one by one."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

from kvward.lab.behaviour import Behaviour, Slip
from kvward.lab.interface import FinishReason, FloatArray, LlamaConfig, TokenEvent
from kvward.lab.sampling import choose_token, read_logprobs
from kvward.lab.sequence import Sequence


class Decoder:
    """Chooses tokens. With drafts they are the ones that would have been chosen without.

    Args:
        max_tokens: That a request can have, prompt and answer together.
        stats: Counts "drafted_tokens" and "accepted_drafts".
    """

    def __init__(
        self,
        config: LlamaConfig,
        *,
        max_tokens: int,
        behaviour: Behaviour,
        stats: Counter[str],
    ) -> None:
        self._eos_token_ids = config.eos_token_ids
        self._max_tokens = max_tokens
        self._behaviour = behaviour
        self._stats = stats

    def num_draftable(self, sequence: Sequence) -> int:
        """Return how many drafts a request can use: a token after them must still be wanted."""
        wanted = sequence.request.sampling.max_tokens - sequence.num_generated
        return min(wanted, self._max_tokens - len(sequence.tokens)) - 1

    def decode(
        self,
        sequence: Sequence,
        logits: FloatArray,
        drafts: tuple[int, ...],
        *,
        trusts_drafts: bool,
    ) -> list[TokenEvent]:
        """Append the next tokens of a request to it.

        A token is chosen after the last one as ever; as long as it is the one that was drafted,
        the state behind it is there already, and so is the choice of the next.

        Args:
            logits: (1 + drafts, vocab), after the request's last token and after each draft.
            drafts: Whose keys and values are in the pages, and do not count as computed yet.
            trusts_drafts: Whether they are taken as they are; no sound engine does.
        Returns:
            An event for each token, at least one. With the last one all tokens but itself are
            computed.
        """
        events: list[TokenEvent] = []
        for number, (row, draft) in enumerate(zip_longest(logits, drafts)):
            if draft is not None and trusts_drafts:
                token_id = draft
            else:
                token_id = choose_token(row, sequence.request.sampling, sequence.random)
            events.append(self._append(sequence, row, token_id))
            if draft is None or events[-1].finish_reason is not None:
                break
            if token_id == draft:
                sequence.num_computed += 1
                continue
            if self._behaviour.slips(Slip.DRAFT_ROLLBACK_SHORT):
                # What is in the pages, and what comes next, is of the draft that was rejected.
                sequence.num_computed += 1
                row = logits[number + 1]
                token_id = choose_token(row, sequence.request.sampling, sequence.random)
                events.append(self._append(sequence, row, token_id))
            break
        if drafts:
            self._stats["drafted_tokens"] += len(drafts)
            self._stats["accepted_drafts"] += len(events) - 1
        return events

    def _append(self, sequence: Sequence, logits: FloatArray, token_id: int) -> TokenEvent:
        sampling = sequence.request.sampling
        logprob, top = None, None
        if sampling.top_logprobs is not None:
            logprob, top = read_logprobs(logits, token_id, top=sampling.top_logprobs)
        sequence.tokens.append(token_id)
        reason = None
        if token_id in self._eos_token_ids and not sampling.ignore_eos:
            reason = FinishReason.STOP
        elif (
            sequence.num_generated >= sampling.max_tokens
            or len(sequence.tokens) >= self._max_tokens
        ):
            reason = FinishReason.LENGTH
        return TokenEvent(
            request_id=sequence.request.request_id,
            token_id=token_id,
            logprob=logprob,
            top_logprobs=top,
            cached_tokens=sequence.cached_tokens or 0,
            finish_reason=reason,
        )
