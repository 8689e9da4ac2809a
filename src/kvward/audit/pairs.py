"""Coin-flipped pairs: two fresh prompts, one of them primed, both probed in random order.

If nothing of the writer's state reaches the reader, the coin is independent of everything the
reader sees, whatever the noise. Both metadata and timing are read from the same pair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations

from kvward.audit.exchange import Call, ForgedScope, Image, Reply
from kvward.audit.history import Arm
from kvward.audit.pictures import draw_image, vary_image
from kvward.audit.plan import FORGERY_CYCLE, Plan
from kvward.audit.prompts import Prompt, derive_random, write_probe_prompt
from kvward.terms import ProbeScope

_KINDS_PERIOD = 12
"""Pairs of one scope whose numbers differ by a multiple of this are of one kind."""


class Change(StrEnum):
    """What happens to the target between priming and probing, by the operator or by waiting."""

    RELOAD = "reload"
    ERASE = "erase"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One coin-flipped pair of a probe scope.

    Attributes:
        coin: 1 or 2: which prompt the writer primes.
        first: 1 or 2: which prompt the reader probes first.
        models: Whom the writer and the reader ask for; None for the plan's model.
        change: What has to be done between priming and probing.
        images: For each prompt the writer's and the reader's, which stand before it.
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
    models: tuple[str | None, str | None] = (None, None)
    change: Change | None = None
    images: tuple[tuple[Image, Image], tuple[Image, Image]] | None = None
    restores: bool = False
    flooder: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What of a pair of other models differs between its two sides.

    Attributes:
        tenants: Writer and reader, as places in the plan; None for one tenant, drawn.
    """

    models: tuple[str | None, str | None]
    change: Change | None = None
    tenants: tuple[int, int] | None = None


def period_of(scope: ProbeScope) -> int:
    """Return after how many numbers the kinds of a scope's pairs repeat."""
    # Pairs forge a scope in different ways by their number, and exchange pictures too.
    return _KINDS_PERIOD if scope is ProbeScope.S4 else FORGERY_CYCLE


def iter_pairs(plan: Plan) -> Iterator[Pair]:
    """Yield all pairs, scopes interleaved in random order, so that controls are contemporaneous."""
    random = derive_random(plan.seed, "pairs")
    couples = list(permutations(plan.tenants, 2))
    kinds = _model_kinds(plan)
    # Erased state, and state past its lifetime, in turn.
    gone = [Change.ERASE] * plan.erases + [Change.EXPIRE] * bool(plan.lifetime_s)
    for number in range(plan.sizes.pairs):
        for index in random.permutation(len(plan.pair_scopes)):
            scope = plan.pair_scopes[int(index)]
            one, other = couples[int(random.integers(len(couples)))]
            within = scope not in {ProbeScope.S3, ProbeScope.S5}
            kind = _Kind(models=(None, None))
            if scope is ProbeScope.S4:
                kind = kinds[number % len(kinds)]
                if kind.tenants is not None:
                    one, other = (plan.tenants[place] for place in kind.tenants)
                    within = False
            name = f"{plan.run_nonce}:{scope}:{number}"
            num_words = pair_words(plan, scope)
            yield Pair(
                scope=scope,
                number=number,
                writer=one,
                reader=one if within else other,
                coin=int(random.integers(1, 3)),
                first=int(random.integers(1, 3)),
                prompts=(
                    write_probe_prompt(plan.seed, num_words=num_words, nonce=f"{name}:1"),
                    write_probe_prompt(plan.seed, num_words=num_words, nonce=f"{name}:2"),
                ),
                forged_salt=f"audit-{int(random.integers(2**48)):012x}",
                models=kind.models,
                change=gone[number % len(gone)] if scope is ProbeScope.S6 else kind.change,
                images=None
                if scope is not ProbeScope.S7
                else (
                    _images(plan, name, 1, same_pixels=bool(number % 2)),
                    _images(plan, name, 2, same_pixels=bool(number % 2)),
                ),
                # Both kinds of forged salts, with and without a saved state.
                restores=plan.saves_state
                and scope is ProbeScope.S5
                and number % FORGERY_CYCLE >= FORGERY_CYCLE // 2,
                flooder=other if scope is ProbeScope.S8 else None,
            )


def pair_words(plan: Plan, scope: ProbeScope) -> int:
    """Return how many words the prompts of a scope's pairs have."""
    return plan.protected_words if scope is ProbeScope.S8 else plan.prompt_tokens


def _model_kinds(plan: Plan) -> list[_Kind]:
    """Return in which ways pairs of other models are made, in turn.

    Switched: one tenant asks two models. Across: two tenants whose salts differ by a model's name.
    Reloaded: one name, other weights.
    """
    other = plan.other_model or None
    kinds = []
    if other is not None:
        kinds += [_Kind(models=(None, other)), _Kind(models=(other, None))]
    if other is not None and plan.salts:
        kinds += [
            _Kind(models=(other, None), tenants=(0, 1)),
            _Kind(models=(None, other), tenants=(1, 0)),
        ]
    if plan.reloads:
        kinds += [_Kind(models=(other, other), change=Change.RELOAD)] * max(1, len(kinds) // 2)
    return kinds


def _images(plan: Plan, name: str, which: int, *, same_pixels: bool) -> tuple[Image, Image]:
    """Return the writer's picture and the reader's: of other pixels, or of another shape alone.

    Each prompt has pictures of its own, since a reader may well meet its own picture again.
    """
    random = derive_random(plan.seed, "picture", f"{name}:{which}")
    drawn = draw_image(random)
    return drawn, vary_image(drawn, random, same_pixels=same_pixels)


Send = Callable[[Pair, Arm, int, str, Call], Awaitable[Reply]]
Alter = Callable[[Pair], Awaitable[None]]
Between = Callable[[Pair, str | None], Awaitable[None]]
After = Callable[[Pair], Awaitable[None]]


async def _nothing(*_: object) -> None:
    """Do what most pairs need in between."""


async def run_pair(
    pair: Pair,
    send: Send,
    *,
    change: Alter = _nothing,
    between: Between = _nothing,
    after: After = _nothing,
) -> None:
    """Prime one prompt as the writer, then probe both as the reader.

    Args:
        send: Takes the pair, the arm, the prompt's number (1 or 2), the conversation and the
            call; sends it, records the trial and returns the reply.
        change: Makes the pair's change.
        between: Called before both probes, with what the target disclosed to the writer.
        after: Called after them.
    """
    hint = await prime_pair(pair, send, change=change)
    await between(pair, hint)
    await probe_pair(pair, send, hint=hint)
    await after(pair)


async def prime_pair(pair: Pair, send: Send, *, change: Alter = _nothing) -> str | None:
    """Prime one prompt as the writer, then make the pair's change.

    Returns:
        What the target disclosed about the writer's scope.
    """
    conversation = conversation_of(pair)
    primed = pair.prompts[pair.coin - 1]
    writing = Call(
        tenant=pair.writer,
        prompt=primed.text,
        max_tokens=1,
        conversation=conversation,
        forged=_forgery(pair, pair.forged_salt, conversation),
        model=pair.models[0],
        image=None if pair.images is None else pair.images[pair.coin - 1][0],
    )
    reply = await send(pair, Arm.PRIME, pair.coin, conversation, writing)
    if pair.change is not None:
        await change(pair)
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
            model=pair.models[1],
            image=None if pair.images is None else pair.images[which - 1][1],
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
    """Return the conversation that the writer of a pair is in."""
    return f"{pair.scope.lower()}-{pair.number}"


def _forgery(pair: Pair, salt: str, conversation: str) -> ForgedScope | None:
    """Return the scope that both sides of a pair claim, where a pair is about that."""
    if pair.scope is not ProbeScope.S5:
        return None
    return ForgedScope(salt=salt, session=conversation, tenant=pair.writer)
