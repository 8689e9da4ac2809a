"""Run one audit and write what came of it: used by `audit`, `demo` and the benchmarks."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvward.audit.history import HistoryFile, Trial
from kvward.audit.judge import judge
from kvward.audit.pairs import Alter, Change, Pair, conversation_of
from kvward.audit.plan import LOAD_CHANNELS, Elicitation, Plan, Route, Sizes, Tier
from kvward.audit.planning import make_plan
from kvward.audit.recorder import Progress
from kvward.audit.report.model import AuditReport, make_report
from kvward.audit.run import AuditRun
from kvward.audit.target import (
    NO_LIMITS,
    Control,
    Controls,
    Limits,
    Preset,
    Spend,
    Target,
    check_budget,
    watch_absence,
)
from kvward.cli.flooding import choose_floods
from kvward.errors import AuditError, ConfigError
from kvward.terms import CacheTier, Channel, ProbeScope, SharingLevel

HISTORY_NAME = "history.jsonl"
REPORT_NAME = "report.json"
PAGE_NAME = "report.html"

_PROMPT_TOKENS = 512
_ABOVE_MINIMUM = 1.25
CANARY_NAME = "canary"
"""What the canary model is called where nobody called it otherwise."""


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """What to audit and how.

    Attributes:
        url: The first address.
        replicas: Further addresses of the same stack.
        keys: API key of each tenant. [secret]
        declared_level: The level that the stack promises; None when nobody said.
        cache_tier: Which tier is put to the test.
        channels: None for all that the target's routes can be read for.
        prompt_tokens: Length of the pairs' prompts; None for 512, or what the target needs for
            caching at all.
        preset: What the target is; None asks it.
        routes: None for the first route that the preset has.
        elicitation: How content is read; None to go by the name of the model.
        lifetime_s: After how many seconds the stack promises to reuse nothing; 0 for no promise.
        controls: What only the operator can do; a flush is needed for every tier but the device.
        other_model: Another model or adapter of the target; empty for none.
        salted: Whether to send a salt for each tenant, as a gateway would, instead of leaving it
            to the stack to tell tenants by their keys.
        pictures: Whether the target's model takes pictures.
        protected_tokens: What the stack promises to keep for every tenant; None for nothing.
        flood_tokens: How much another tenant asks to evict it; None for several such shares.
    """

    url: str
    keys: Mapping[str, str]
    model: str | None
    tier: Tier
    seed: int
    channels: Sequence[Channel] | None
    declared_level: SharingLevel | None
    clients: int
    prompt_tokens: int | None
    sizes: Sizes | None = None
    cache_tier: CacheTier = CacheTier.DEVICE
    replicas: Sequence[str] = ()
    preset: Preset | None = None
    routes: Sequence[Route] | None = None
    stream: bool = True
    limits: Limits = NO_LIMITS
    controls: Controls = field(default_factory=lambda: Controls({}))
    protected_tokens: int | None = None
    flood_tokens: int | None = None
    title: str = "Audit"
    note: str = ""
    other_model: str = ""
    elicitation: Elicitation | None = None
    lifetime_s: float = 0.0
    salted: bool = False
    pictures: bool = False

    def __repr__(self) -> str:
        """Leave out the keys."""
        return f"<AuditRequest of {self.url}>"


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Who is told how far an audit is.

    Attributes:
        on_plan: Called with the plan before its first request; False ends there.
        on_progress: Called after every request; must not block.
        on_spend: Called before `on_plan` with what the plan costs at most.
    """

    on_plan: Callable[[Plan], bool] = lambda _: True
    on_progress: Callable[[Progress], None] = lambda _: None
    on_spend: Callable[[Spend], None] = lambda _: None


NOBODY = Watch()


async def run_audit(
    request: AuditRequest, *, folder: Path, watch: Watch = NOBODY
) -> tuple[AuditReport, list[Trial]] | None:
    """Reach the target, fix the plan, run it, judge it.

    Args:
        folder: Takes the history.
    Returns:
        None when the one who watches ended it with the plan.
    Raises:
        BudgetExceededError: The plan exceeds the limits; nothing of it was sent.
        ConfigError: The target's preset does not have a route, or cannot be read for a channel.
    """
    target = Target(
        [request.url, *request.replicas],
        request.keys,
        model=request.model,
        max_connections=4 * request.clients,
        preset=request.preset,
        stream=request.stream,
        limits=request.limits,
    )
    async with target:
        routes = choose_routes(request, target)
        check_means(request, target, routes)
        elicitation = choose_elicitation(request, target, routes)
        prompt_tokens = _choose_length(request, target.preset)
        floods = choose_floods(
            request.protected_tokens,
            request.flood_tokens,
            preset=target.preset,
            prompt_tokens=prompt_tokens,
            num_tenants=len(request.keys),
            cache_tier=request.cache_tier,
        )
        plan = make_plan(
            url=target.url,
            model=target.model,
            tenants=list(request.keys),
            tier=request.tier,
            seed=request.seed,
            channels=choose_channels(request, target, routes, elicitation),
            declared_level=request.declared_level,
            clients=request.clients,
            prompt_tokens=prompt_tokens,
            sizes=request.sizes,
            run_nonce=secrets.token_hex(8),
            cache_tier=request.cache_tier,
            routes=routes,
            replicas=target.urls if len(target.urls) > 1 else (),
            preset=target.preset.name,
            preset_reason=target.choice.reason,
            counter_hint=target.preset.counter_hint,
            streamed=target.streams,
            other_model=request.other_model,
            reloads=Control.SWAP_ADAPTER in request.controls,
            erases=Control.ERASE in request.controls,
            lifetime_s=request.lifetime_s,
            elicitation=elicitation,
            salted=request.salted,
            pictures=request.pictures,
            doors=[door.name for door in target.preset.doors],
            saves_state=target.preset.saved_state is not None,
            protected_tokens=floods.protected_tokens,
            protected_words=floods.protected_words,
            flood_tokens=floods.flood_tokens,
        )
        recording = await record_audit(
            plan,
            target,
            folder=folder,
            watch=watch,
            limits=request.limits,
            controls=request.controls.hiding(request.keys.values()),
        )
    if recording is None:
        return None
    return await decide_audit(plan, recording, title=request.title, note=_note(request))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a run left: its trials in the order in which they ended, and their file's digest."""

    trials: list[Trial]
    history_digest: str
    started_unix_s: int
    duration_s: float


async def record_audit(
    plan: Plan,
    target: Target,
    *,
    folder: Path,
    watch: Watch,
    limits: Limits,
    controls: Controls,
    pairs: Sequence[Pair] | None = None,
) -> Recording | None:
    """Send what a plan says to an open target and write the history.

    Args:
        pairs: Instead of the plan's own; as many for each of its scopes.
    Returns:
        None when the one who watches ended it with the plan.
    Raises:
        BudgetExceededError: The plan exceeds the limits; nothing of it was sent.
    """
    watch.on_spend(check_budget(plan, target.preset, limits))
    flush = _flush(controls, target)
    change = _change(plan, controls, target)
    if not watch.on_plan(plan):
        return None
    started, began = int(time.time()), time.perf_counter()
    with HistoryFile(folder / HISTORY_NAME) as history:
        history.write_plan(plan)
        run = AuditRun(
            plan,
            target,
            history,
            on_progress=watch.on_progress,
            change=change,
            flush=flush,
            pairs=pairs,
        )
        trials = await run.run()
        digest = history.digest
    return Recording(
        trials=trials,
        history_digest=digest,
        started_unix_s=started,
        duration_s=time.perf_counter() - began,
    )


async def decide_audit(
    plan: Plan, recording: Recording, *, title: str, note: str
) -> tuple[AuditReport, list[Trial]]:
    """Judge what was recorded."""
    # The rules are heavy arithmetic; the event loop has nothing else to do by now.
    judgement = await asyncio.to_thread(
        judge, plan, recording.trials, history_digest=recording.history_digest
    )
    report = make_report(
        title=title,
        note=note,
        plan=plan,
        judgement=judgement,
        trials=recording.trials,
        started_unix_s=recording.started_unix_s,
        duration_s=recording.duration_s,
    )
    return report, recording.trials


def choose_routes(request: AuditRequest, target: Target) -> list[Route]:
    """Return the routes of an audit.

    Raises:
        ConfigError: The preset does not have one that was asked for.
    """
    routes = list(request.routes or [next(iter(target.preset.routes))])
    for route in routes:
        target.route(route)
    return routes


def check_means(request: AuditRequest, target: Target, routes: Sequence[Route]) -> None:
    """Check that a target has what an audit was asked to look at.

    Raises:
        ConfigError: It does not list the other model, or nothing is known of how it is sent a
            salt or a picture.
    """
    if request.other_model:
        target.check_other_model(request.other_model)
    for route in routes:
        if request.salted:
            target.preset.salt_fields(route, "")
        if request.pictures and target.route(route).add_image is None:
            raise ConfigError(
                f"How a picture is sent to {route} of {target.preset.title} is not known.",
                hint="Leave --pictures out.",
            )


def choose_elicitation(
    request: AuditRequest, target: Target, routes: Sequence[Route]
) -> Elicitation:
    """Return how content is to be read: as it was said, else by the name of the model.

    Nothing is sent to find out: a plan is fixed, and may be refused, before the first prompt.
    Where a route gives no logprobs, content is read if it was asked for: it takes many answers.
    """
    if request.elicitation is not None:
        return request.elicitation
    named = request.channels is not None and Channel.CONTENT in request.channels
    if not all(target.route(route).gives_content for route in routes):
        return Elicitation.TEXT if named else Elicitation.LOGPROBS
    name = target.model.rstrip("/").rpartition("/")[2]
    return Elicitation.LOGPROBS if name.startswith(CANARY_NAME) else Elicitation.TEXT


def choose_channels(
    request: AuditRequest,
    target: Target,
    routes: Sequence[Route],
    elicitation: Elicitation,
) -> Sequence[Channel]:
    """Return the channels of an audit: those asked for, else all that can be read.

    Raises:
        ConfigError: A channel was asked for that cannot be read here.
    """
    mute = [route for route in routes if not target.route(route).gives_content]
    if elicitation is Elicitation.TEXT:
        mute = []  # what is printed can be read on every route
    wrapped = [route for route in routes if not target.route(route).verbatim]
    if request.channels is None:
        unread = set(LOAD_CHANNELS) if mute or request.cache_tier is not CacheTier.DEVICE else set()
        if wrapped or elicitation is Elicitation.TEXT:
            unread.add(Channel.DIFFERENTIAL)
        return [channel for channel in Channel if channel not in unread]
    if mute and LOAD_CHANNELS.intersection(request.channels):
        raise ConfigError(
            f"Content cannot be read from {mute[0]} of {target.preset.title}: it gives no 20 "
            "logprobs for a token.",
            hint="Choose another --route; or --no-canary-model reads what is printed.",
        )
    if elicitation is Elicitation.TEXT and Channel.DIFFERENTIAL in request.channels:
        raise ConfigError(
            "Answers can be worked out for the canary model only.",
            hint="If it is served, say so with --canary-model; else leave differential out.",
        )
    if wrapped and Channel.DIFFERENTIAL in request.channels:
        raise ConfigError(
            f"Answers of {wrapped[0]} cannot be worked out: a template stands around the prompt.",
            hint="Choose --route completions, or leave the differential channel out.",
        )
    return request.channels


def _choose_length(request: AuditRequest, preset: Preset) -> int:
    if request.prompt_tokens is not None:
        return request.prompt_tokens
    if preset.min_prompt_tokens == 1:
        return _PROMPT_TOKENS
    return max(_PROMPT_TOKENS, round(preset.min_prompt_tokens * _ABOVE_MINIMUM))


def _note(request: AuditRequest) -> str:
    if request.cache_tier is CacheTier.DEVICE or not request.controls.empties_in_place:
        return request.note
    vouched = "That the device was emptied in place is the operator's word; nothing showed it."
    return f"{request.note} {vouched}".strip()


def _change(plan: Plan, controls: Controls, target: Target) -> Alter:
    """Return what makes the change that a pair needs, by the operator's controls.

    Raises:
        ConfigError: The plan needs a control that there is not.
    """
    needed = {
        Control.ERASE: plan.erases and ProbeScope.S6 in plan.pair_scopes,
        Control.SWAP_ADAPTER: plan.reloads and ProbeScope.S4 in plan.pair_scopes,
    }
    for control, is_needed in needed.items():
        if is_needed and control not in controls:
            raise ConfigError(
                f"The plan needs a control that says how to {control}.",
                hint=f"Give --controls with a section [{control}].",
            )

    async def change(pair: Pair) -> None:
        if pair.change is Change.ERASE:
            await controls.run(
                Control.ERASE,
                target,
                tenant=pair.writer,
                conversation=conversation_of(pair),
            )
        elif pair.change is Change.RELOAD:
            adapter = plan.other_model or plan.model
            await controls.run(Control.SWAP_ADAPTER, target, adapter=adapter)

    return change


def _flush(controls: Controls, target: Target) -> Callable[[], Awaitable[None]] | None:
    """Return what empties the device tier and sees that it was, if the operator said how."""
    if Control.FLUSH_DEVICE not in controls:
        return None

    async def flush() -> None:
        async with watch_absence(target) as absence:
            await controls.run(Control.FLUSH_DEVICE, target)
        if not absence.is_complete and not controls.empties_in_place:
            raise AuditError(
                "The target answered all the while its device was to be emptied, so nothing shows "
                "that it was, and what is found later could lie anywhere.",
                hint="Give a command that ends every engine, waits until it has ended, and starts "
                "it again. Where memory is emptied without that, say so in the file of "
                "--controls: empties_in_place = true under [flush-device].",
            )

    return flush
