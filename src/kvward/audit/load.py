"""The content phase: concurrent sessions under a load that provokes races.

What it provokes is what engines were seen to fail on: many requests at once, lengths at block
boundaries, eviction by fresh prompts, long decodes on cached prefixes, bursts of one prefix,
cancels at any moment with an immediate retry. Between them some sessions hold dialogues.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from kvward.audit.canary.codebook import Session
from kvward.audit.dialogue import CANCELLED_ANSWER_TOKENS, Dialogue, Fate, Version
from kvward.audit.elicitation import TEXT_TOKENS, as_lines
from kvward.audit.exchange import TOP_LOGPROBS, Call, Ending, Reply
from kvward.audit.history import Arm
from kvward.audit.plan import BLOCK_TOKENS, OUTPUTS_PER_TURN_OUTPUT, Elicitation, Plan
from kvward.audit.prompts import (
    Prompt,
    derive_random,
    open_dialogue,
    write_canary_prompt,
    write_turn_prompt,
    write_voice_prompt,
)

_LENGTHS = [
    blocks * BLOCK_TOKENS + offset for blocks in (3, 5, 8, 12, 16, 24) for offset in (-1, 0, 1)
]
_READ_PREFIX_WORDS = 9 * BLOCK_TOKENS
_SHARE = {Arm.WRITE: 0.35, Arm.READ: 0.35, Arm.TWIN: 0.15, Arm.CANCEL: 0.15}
_FIRST_GUESS_TTFT_S = 0.02
_FIXED_CANCEL_S = (0.015, 0.019)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing a client does: a request, two equal ones at once, or a cancel and its retry.

    Attributes:
        patience: Cancel after this multiple of the usual time to first token.
        delay_s: Head start of the first of two equal requests.
    """

    arm: Arm
    session: Session
    prompt: Prompt
    max_tokens: int
    patience: float = 0.0
    delay_s: float = 0.0

    @property
    def num_outputs(self) -> int:
        """Return how many finished outputs the step gives."""
        return 2 if self.arm is Arm.TWIN else 1


def logprobs_of(plan: Plan) -> int | None:
    """Return how many logprobs the load asks for: none where they are not read."""
    return TOP_LOGPROBS if plan.elicitation is Elicitation.LOGPROBS else None


def iter_steps(plan: Plan, sessions: Sequence[Session]) -> Iterator[Step | Dialogue]:
    """Yield the steps of the plan, the same for the same seed, until its outputs are planned.

    Dialogues come whenever their share of the outputs is behind; the steps between them are those
    of a plan without dialogues.
    """
    steps, dialogues = _iter_requests(plan, sessions), _iter_dialogues(plan, sessions)
    planned = turns = 0
    while planned < plan.sizes.content_outputs:
        if plan.has_dialogues and turns * OUTPUTS_PER_TURN_OUTPUT < planned:
            dialogue = next(dialogues)
            turns += dialogue.num_outputs
            planned += dialogue.num_outputs
            yield dialogue
        else:
            step = next(steps)
            planned += step.num_outputs
            yield step


def _iter_dialogues(plan: Plan, sessions: Sequence[Session]) -> Iterator[Dialogue]:
    random = derive_random(plan.seed, "dialogues")
    for number in count():
        session = sessions[int(random.integers(len(sessions)))]
        yield open_dialogue(plan.seed, session, number=number)


def _iter_requests(plan: Plan, sessions: Sequence[Session]) -> Iterator[Step]:
    random = derive_random(plan.seed, "load")
    arms = list(_SHARE)
    shares = list(_SHARE.values())
    for nonce in count(1):
        arm = arms[int(random.choice(len(arms), p=shares))]
        session = sessions[int(random.integers(len(sessions)))]
        length = _LENGTHS[int(random.integers(len(_LENGTHS)))]
        writes = arm is Arm.WRITE or (arm is Arm.CANCEL and random.random() < 0.5)
        prefix = 0
        if writes:
            max_tokens = int(random.integers(1, 5))
        elif arm is Arm.TWIN:
            length = max(length, 2 * _READ_PREFIX_WORDS)
            max_tokens = 2
        else:
            prefix = _READ_PREFIX_WORDS
            length = prefix + int(random.integers(1, 2 * BLOCK_TOKENS))
            max_tokens = int(random.integers(8, 25))
        prints = plan.elicitation is Elicitation.TEXT
        write = as_lines if prints else _write_words
        prompt = write(
            plan.seed,
            session,
            of_canary=writes,
            prefix_words=prefix,
            num_words=length,
            nonce=nonce,
        )
        yield Step(
            arm=arm,
            session=session,
            prompt=prompt,
            max_tokens=TEXT_TOKENS if prints else max_tokens,
            patience=float(random.uniform(0, 1.5)),
            delay_s=float(random.uniform(0, 0.006)),
        )


def _write_words(
    seed: int, session: Session, *, of_canary: bool, prefix_words: int, num_words: int, nonce: int
) -> Prompt:
    """Return a prompt for the canary model: of the session's canary, or of its filler."""
    if of_canary:
        return write_canary_prompt(seed, session, num_words=num_words, nonce=nonce)
    return write_voice_prompt(
        seed, session, prefix_words=prefix_words, num_words=num_words, nonce=nonce
    )


Send = Callable[[Arm, Session, Prompt, Call], Awaitable[Reply]]


class Load:
    """Runs steps with a fixed number of clients.

    Args:
        send: Sends a call, records the trial and returns the reply.
    """

    def __init__(self, plan: Plan, steps: Iterator[Step | Dialogue], send: Send) -> None:
        self._plan = plan
        self._steps = steps
        self._send = send
        self._recent_ttft_s: deque[float] = deque([_FIRST_GUESS_TTFT_S], maxlen=64)

    async def run(self) -> None:
        """Run every step; returns when all clients have finished."""
        async with asyncio.TaskGroup() as group:
            for client in range(self._plan.clients):
                group.create_task(self._client(), name=f"client-{client}")

    async def _client(self) -> None:
        for step in self._steps:
            if isinstance(step, Dialogue):
                await self._hold(step)
                continue
            match step.arm:
                case Arm.TWIN:
                    await asyncio.gather(
                        self._request(step, Arm.TWIN),
                        self._request(step, Arm.TWIN, delay_s=step.delay_s),
                    )
                case Arm.CANCEL:
                    await self._request(
                        step, Arm.CANCEL, cancel_after_s=self._patience_s(step.patience)
                    )
                    await self._request(step, Arm.RETRY)
                case arm:
                    await self._request(step, arm)

    async def _hold(self, dialogue: Dialogue) -> None:
        """Ask the versions of a dialogue one after the other."""
        for version in dialogue.asked:
            await self._turn(dialogue, version)

    async def _turn(self, dialogue: Dialogue, version: Version) -> None:
        session, prompt = dialogue.session, write_turn_prompt(dialogue, version)
        cancelled = version.fate is Fate.CANCELLED
        call = Call(
            tenant=session.tenant,
            prompt=prompt.text,
            max_tokens=CANCELLED_ANSWER_TOKENS if cancelled else 1,
            conversation=session.conversation,
            logprobs=TOP_LOGPROBS,
            cancel_after_s=self._patience_s(version.patience) if cancelled else None,
        )
        await self._send(Arm.CANCEL if cancelled else Arm.TURN, session, prompt, call)

    def _patience_s(self, patience: float) -> float:
        # One in five at the two moments that a public bug report found to matter.
        if patience < 0.3:
            return _FIXED_CANCEL_S[int(patience * 100) % len(_FIXED_CANCEL_S)]
        return patience * statistics.median(self._recent_ttft_s)

    async def _request(
        self, step: Step, arm: Arm, *, delay_s: float = 0.0, cancel_after_s: float | None = None
    ) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        call = Call(
            tenant=step.session.tenant,
            prompt=step.prompt.text,
            max_tokens=step.max_tokens,
            conversation=step.session.conversation,
            logprobs=logprobs_of(self._plan),
            cancel_after_s=cancel_after_s,
        )
        reply = await self._send(arm, step.session, step.prompt, call)
        if reply.ending is Ending.DONE and reply.ttft_ns is not None:
            self._recent_ttft_s.append(reply.ttft_ns / 1e9)
