"""Coin-flipped pairs: two fresh prompts, one of them primed, both probed in random order.

If nothing of the writer's state reaches the reader, the coin is independent of everything the
reader sees, whatever the noise. Both metadata and timing are read from the same pair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

from kvward.audit.exchange import Call, ForgedScope, Reply
from kvward.audit.history import Arm
from kvward.audit.plan import FORGERY_CYCLE, Plan
from kvward.audit.prompts import Prompt, derive_random, write_probe_prompt
from kvward.terms import ProbeScope


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One coin-flipped pair of a probe scope.

    Attributes:
        coin: 1 or 2: which prompt the writer primes.
        first: 1 or 2: which prompt the reader probes first.
        restores: Whether the reader brings the writer's saved state, too.
        flooder: Another tenant, who floods between priming and probing; None for nobody.
    """

    scope: ProbeScope
    number: int
    writer: str
    reader: str
    coin: int
    first: int
    prompts: tuple[Prompt, Prompt]
    forged_salt: str
    restores: bool = False
    flooder: str | None = None


def iter_pairs(plan: Plan) -> Iterator[Pair]:
    """Yield all pairs, scopes interleaved in random order, so that controls are contemporaneous."""
    random = derive_random(plan.seed, "pairs")
    couples = list(permutations(plan.tenants, 2))
    for number in range(plan.sizes.pairs):
        for index in random.permutation(len(plan.pair_scopes)):
            scope = plan.pair_scopes[int(index)]
            one, other = couples[int(random.integers(len(couples)))]
            within = scope in {ProbeScope.S0, ProbeScope.S1, ProbeScope.S2, ProbeScope.S8}
            num_words = pair_words(plan, scope)
            yield Pair(
                scope=scope,
                number=number,
                writer=one,
                reader=one if within else other,
                coin=int(random.integers(1, 3)),
                first=int(random.integers(1, 3)),
                prompts=(
                    write_probe_prompt(
                        plan.seed,
                        num_words=num_words,
                        nonce=f"{plan.run_nonce}:{scope}:{number}:1",
                    ),
                    write_probe_prompt(
                        plan.seed,
                        num_words=num_words,
                        nonce=f"{plan.run_nonce}:{scope}:{number}:2",
                    ),
                ),
                forged_salt=f"audit-{int(random.integers(2**48)):012x}",
                # Both kinds of forged salts, with and without a saved state.
                restores=plan.saves_state
                and scope is ProbeScope.S5
                and number % FORGERY_CYCLE >= FORGERY_CYCLE // 2,
                flooder=other if scope is ProbeScope.S8 else None,
            )


def pair_words(plan: Plan, scope: ProbeScope) -> int:
    """Return how many words the prompts of a scope's pairs have."""
    return plan.protected_words if scope is ProbeScope.S8 else plan.prompt_tokens


Send = Callable[[Pair, Arm, int, str, Call], Awaitable[Reply]]


Between = Callable[[Pair, str | None], Awaitable[None]]


After = Callable[[Pair], Awaitable[None]]


async def run_pair(
    pair: Pair, send: Send, *, between: Between | None = None, after: After | None = None
) -> None:
    """Prime one prompt as the writer, then probe both as the reader.

    Args:
        between: Called before both probes, with what the target disclosed to the writer.
        after: Called after them.
        send: Takes the pair, the arm, the prompt's number (1 or 2), the conversation and the
            call; sends it, records the trial and returns the reply.
    """
    hint = await prime_pair(pair, send)
    if between is not None:
        await between(pair, hint)
    await probe_pair(pair, send, hint=hint)
    if after is not None:
        await after(pair)


async def prime_pair(pair: Pair, send: Send) -> str | None:
    """Prime one prompt as the writer; return what the target disclosed about its scope."""
    conversation = conversation_of(pair)
    primed = pair.prompts[pair.coin - 1]
    writing = Call(
        tenant=pair.writer,
        prompt=primed.text,
        max_tokens=1,
        conversation=conversation,
        forged=_forgery(pair, pair.forged_salt, conversation),
    )
    reply = await send(pair, Arm.PRIME, pair.coin, conversation, writing)
    return reply.scope_hint


async def probe_pair(pair: Pair, send: Send, *, hint: str | None) -> None:
    """Probe both prompts as the reader.

    Args:
        hint: What the target disclosed to the writer; every other forgery uses it.
    """
    conversation = conversation_of(pair)
    if pair.scope is ProbeScope.S2:
        conversation += "-other"
    forged = _forgery(pair, claimed_salt(pair, hint), conversation)
    for which in (pair.first, 3 - pair.first):
        arm = Arm.PROBE_PRIMED if which == pair.coin else Arm.PROBE_UNPRIMED
        probing = Call(
            tenant=pair.reader,
            prompt=pair.prompts[which - 1].text,
            max_tokens=1,
            conversation=conversation,
            forged=forged,
        )
        await send(pair, arm, which, conversation, probing)


def claimed_salt(pair: Pair, hint: str | None) -> str:
    """Return the salt that the reader claims, where a pair is about that.

    Every other time it is what the target itself disclosed to the writer.
    """
    if pair.scope is ProbeScope.S5 and pair.number % 2 and hint is not None:
        return hint
    return pair.forged_salt


def conversation_of(pair: Pair) -> str:
    """Return the conversation that a pair's requests are of."""
    return f"{pair.scope.lower()}-{pair.number}"


def _forgery(pair: Pair, salt: str, conversation: str) -> ForgedScope | None:
    """Return the scope that both sides of a pair claim, where a pair is about that."""
    if pair.scope is not ProbeScope.S5:
        return None
    return ForgedScope(salt=salt, session=conversation, tenant=pair.writer)
