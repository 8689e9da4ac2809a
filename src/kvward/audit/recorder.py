"""What is known of a run so far: every trial, written down as it ends, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvward.audit.canary.words import CODE_WORDS
from kvward.audit.exchange import Reply
from kvward.audit.history import Arm, HistoryFile, Redactor, Trial
from kvward.audit.pairs import Pair
from kvward.audit.plan import Plan
from kvward.audit.prompts import Prompt
from kvward.terms import ProbeScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run is: requests done of requests planned, and what it is doing."""

    done: int
    planned: int
    phase: str


class Recorder:
    """Numbers trials and writes them to the history, in the order in which they ended.

    Args:
        history: Already holds the plan.
        on_progress: Called after every request; must not block.
    """

    def __init__(
        self, plan: Plan, history: HistoryFile, on_progress: Callable[[Progress], None]
    ) -> None:
        self._plan = plan
        self._history = history
        self._on_progress = on_progress
        self._redactor = Redactor(CODE_WORDS)
        self.phase = "starting"
        self.trials: list[Trial] = []

    def record(
        self,
        arm: Arm,
        tenant: str,
        conversation: str,
        prompt: Prompt,
        reply: Reply,
        *,
        pair: Pair | None,
        scope: ProbeScope | None,
    ) -> None:
        """Write down what came of a request, foreign text redacted."""
        first = None
        if pair is not None and arm in {Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED}:
            first = (arm is Arm.PROBE_PRIMED) == (pair.first == pair.coin)
        trial = Trial(
            number=0,
            arm=arm,
            tenant=tenant,
            conversation=conversation,
            scope=scope,
            pair=None if pair is None else pair.number,
            coin=None if pair is None else pair.coin,
            first=first,
            prompt=prompt.recipe,
            prompt_words=len(prompt.words),
            own_words=() if scope is not None else tuple(sorted(prompt.own_words)),
            ending=reply.ending,
            status=reply.status,
            start_ns=reply.start_ns,
            ttft_ns=reply.ttft_ns,
            total_ns=reply.total_ns,
            text=self._redactor.text(reply.text),
            top_logprobs=self._redactor.top_logprobs(reply),
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cached_tokens=reply.cached_tokens,
            matched_tokens=reply.matched_tokens,
            cache_hit=reply.cache_hit,
            response_ids=reply.response_ids,
            error=reply.error,
            created_tokens=reply.created_tokens,
            route=reply.route,
            replica=reply.replica if len(self._plan.replicas) > 1 else None,
            num_retries=reply.num_retries,
            finish_reason=reply.finish_reason,
            model=reply.model,
            output_digest=reply.output_digest,
        )
        self.add(trial)

    def add(self, trial: Trial) -> None:
        """Number a trial, write it down, and say how far the run is."""
        trial = replace(trial, number=len(self.trials))
        self.trials.append(trial)
        self._history.write(trial)
        done = len(self.trials)
        planned = max(self._plan.num_requests, done)
        self._on_progress(Progress(done=done, planned=planned, phase=self.phase))
