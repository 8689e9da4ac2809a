"""What to send again for one finding of a report.

A finding of a pair is replayed as that pair: the same writer, reader, forgery, route and address,
with fresh prompts, because the recorded ones may have left state of their own, and with as many
positive controls. A finding under load is a race, so its whole load is sent again, prompt by
prompt. A cell named alone is replayed with the plan's own pairs or load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import msgspec

from kvward.audit.exchange import Call
from kvward.audit.history import Arm
from kvward.audit.pairs import Pair, iter_pairs, pair_words, period_of
from kvward.audit.placement import Placement
from kvward.audit.plan import CROWD, LOAD_CHANNELS, TURN_NAMES, Cell, Plan, Sizes
from kvward.audit.planning import make_plan
from kvward.audit.prompts import derive_random, write_probe_prompt
from kvward.audit.report.model import FORMAT, cell_id
from kvward.errors import ConfigError, ReportError
from kvward.terms import Channel, Outcome, ProbeScope

MAX_REPORT_BYTES = 256 << 20
_MAX_PAIRS = 100_000
_MAX_OUTPUTS = 10_000_000
_MAX_LOOKED_AT = 20_000
_PAIR_NAME = re.compile(r"(s[0-8])-([0-9]{1,6})(?:-other)?")


class RecordedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says of a finding, as far as it is needed to replay it."""

    id: str
    reader: str
    source: str | None


class RecordedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says of a cell, as far as it is needed to replay it."""

    channel: Channel
    scope: ProbeScope
    outcome: Outcome
    findings: tuple[RecordedFinding, ...]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A report that was read and agrees with itself; who wrote it is not known."""

    format: str
    plan: Plan
    plan_digest: str
    verdicts: tuple[RecordedVerdict, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return where its requests went. [untrusted]"""
        return self.plan.replicas or (self.plan.url,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a name in a report stands for; `finding` is None where it names a cell."""

    verdict: RecordedVerdict
    finding: RecordedFinding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What is sent: a plan, and pairs of its own where it is about one pair."""

    plan: Plan
    pairs: tuple[Pair, ...] | None


def parse_report(data: bytes) -> Recorded:
    """Read a machine-readable report.

    Raises:
        ReportError: It is none, of another format, or its plan is not the one that it names.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise ReportError("The report is larger than any report is.")
    try:
        recorded = msgspec.json.decode(data, type=Recorded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ReportError(
            f"This is not a report of an audit: {exc}.",
            hint="Give what `kvward audit --json` printed, or the report.json of its folder.",
        ) from exc
    if recorded.format != FORMAT:
        raise ReportError(f"This version reads the format {FORMAT!r} and no other.")
    if recorded.plan.digest != recorded.plan_digest:
        raise ReportError(
            "The report's plan is not the one that its digest names; one of them was changed.",
            hint="Take the report as the audit wrote it.",
        )
    return recorded


def find_subject(recorded: Recorded, name: str) -> Subject:
    """Return what a name stands for: a finding ("metadata-S3-412") or a cell ("timing-S3").

    Raises:
        ConfigError: Nothing in the report has that name.
    """
    known = []
    for verdict in recorded.verdicts:
        cell = cell_id(verdict)
        if name == cell:
            return Subject(verdict=verdict, finding=None)
        for finding in verdict.findings:
            if name == finding.id:
                return Subject(verdict=verdict, finding=finding)
        if verdict.outcome is Outcome.VIOLATED:
            known.append(verdict.findings[0].id if verdict.findings else cell)
    if known:
        hint = f"It has for example: {', '.join(known[:8])}."
    else:
        hint = "No cell of it is violated; a cell is named like metadata-S3."
    raise ConfigError("The report has no finding and no cell of that name.", hint=hint)


def plan_replay(
    recorded: Recorded,
    subject: Subject,
    *,
    addresses: Sequence[str],
    model: str,
    preset: str,
    preset_reason: str,
    run_nonce: str,
    repeats: int,
) -> Replay:
    """Fix what is sent again.

    Args:
        addresses: As many as the report has, in its order.
        repeats: How often a pair is sent.
    Raises:
        ConfigError: A number is out of its range, or the finding's pair is none of the plan's.
    """
    old = recorded.plan
    if len(addresses) != len(recorded.addresses):
        raise ConfigError(
            f"The report has {len(recorded.addresses)} addresses, and {len(addresses)} are given.",
            hint="Give --base-url for each of them, in the same order.",
        )
    if old.sizes.pairs > _MAX_PAIRS or old.sizes.content_outputs > _MAX_OUTPUTS:
        raise ConfigError("The report's plan is larger than any that an audit makes.")
    channel, scope = subject.verdict.channel, subject.verdict.scope
    number = _pair_number(subject)
    loaded = channel in LOAD_CHANNELS or _is_of_load(subject)
    cells = tuple(cell for cell in old.cells if _is_needed(cell, channel, scope, loaded=loaded))
    if all((cell.channel, cell.scope) != (channel, scope) for cell in cells):
        raise ConfigError(f"{channel}-{scope} is no cell of the report's plan.")
    plan = make_plan(
        url=addresses[0],
        model=model,
        tenants=old.tenants,
        tier=old.tier,
        seed=old.seed,
        channels=[channel],
        declared_level=None,
        clients=old.clients,
        prompt_tokens=old.prompt_tokens,
        sizes=old.sizes if number is None else _pair_sizes(repeats),
        run_nonce=run_nonce,
        cache_tier=old.cache_tier,
        alpha=old.alpha,
        confidence=old.confidence,
        routes=old.routes,
        replicas=addresses if len(addresses) > 1 else (),
        preset=preset,
        preset_reason=preset_reason,
        counter_hint=old.counter_hint,
        streamed=old.streamed,
        other_model=old.other_model,
        reloads=old.reloads,
        erases=old.erases,
        lifetime_s=old.lifetime_s,
        elicitation=old.elicitation,
        salted=bool(old.salts),
        doors=old.doors,
        saves_state=old.saves_state,
        protected_tokens=old.protected_tokens,
        protected_words=old.protected_words,
        flood_tokens=old.flood_tokens,
    )
    if scope is ProbeScope.S8 and plan.protected_tokens is None:
        raise ConfigError("The report's plan does not say what a flood may not reach.")
    plan = replace(plan, cells=cells)
    if number is None:
        return Replay(plan=plan, pairs=None)
    pair = _recorded_pair(old, scope, number)
    return Replay(plan=plan, pairs=tuple(_iter_repeated(plan, pair, repeats)))


def _pair_sizes(repeats: int) -> Sizes:
    return Sizes(content_outputs=0, control_outputs=0, pairs=repeats)


def _is_needed(cell: Cell, channel: Channel, scope: ProbeScope, *, loaded: bool) -> bool:
    """Tell whether a cell is decided again: the subject's, its control, and its load's."""
    if cell.channel in LOAD_CHANNELS:
        return loaded
    return cell.channel is channel and cell.scope in {ProbeScope.S0, scope}


def _pair_number(subject: Subject) -> int | None:
    """Return the number of the pair that a finding is of; None for the load or a whole cell."""
    if subject.finding is None or subject.verdict.channel in LOAD_CHANNELS:
        return None
    conversation = subject.finding.reader.rpartition("/")[2]
    match = _PAIR_NAME.fullmatch(conversation)
    if match is not None and match[1].upper() == subject.verdict.scope.value:
        return int(match[2])
    if conversation in {*TURN_NAMES, CROWD}:
        return None
    raise ConfigError(
        "The finding's reader is no conversation of an audit, so its requests cannot be told.",
        hint="Take the report as the audit wrote it.",
    )


def _is_of_load(subject: Subject) -> bool:
    """Tell whether a finding of counts was seen in an answer under load."""
    finding = subject.finding
    return finding is not None and finding.reader.rpartition("/")[2] in TURN_NAMES


def _recorded_pair(plan: Plan, scope: ProbeScope, number: int) -> Pair:
    # Who asks whom does not depend on how long prompts are, and short ones are made faster.
    short = replace(plan, prompt_tokens=1, protected_words=1)
    for pair in iter_pairs(short):
        if (pair.scope, pair.number) == (scope, number):
            return pair
    raise ConfigError("The finding's pair is none of the report's plan.")


def _iter_repeated(plan: Plan, pair: Pair, repeats: int) -> Iterator[Pair]:
    """Yield the pair again and again, each time after or before a positive control."""
    random = derive_random(plan.seed, "replay", plan.run_nonce)
    control = replace(
        pair,
        scope=ProbeScope.S0,
        writer=pair.reader,
        models=(pair.models[1], pair.models[1]),
        change=None,
        images=None,
        restores=False,
        flooder=None,
    )
    kinds = [pair] if pair.scope is ProbeScope.S0 else [control, pair]
    numbers = [_iter_numbers(plan, pair, kind) for kind in kinds]
    for _ in range(repeats):
        for index in random.permutation(len(kinds)):
            kind, number = kinds[int(index)], next(numbers[int(index)])
            names = [f"{plan.run_nonce}:{kind.scope}:{number}:{which}" for which in (1, 2)]
            size = pair_words(plan, kind.scope)
            one, two = (write_probe_prompt(plan.seed, num_words=size, nonce=name) for name in names)
            yield replace(
                kind,
                number=number,
                coin=int(random.integers(1, 3)),
                first=int(random.integers(1, 3)),
                prompts=(one, two),
                forged_salt=f"audit-{int(random.integers(2**48)):012x}",
            )


def _iter_numbers(plan: Plan, pair: Pair, kind: Pair) -> Iterator[int]:
    """Yield numbers that the plan places as it placed the pair, and that forge in its way."""
    placement = Placement(plan)
    arms = (Arm.PROBE_PRIMED,) if kind.scope is ProbeScope.S0 else (Arm.PRIME, Arm.PROBE_PRIMED)
    wanted = [_place(placement, pair, arm) for arm in arms]
    period = period_of(pair.scope)
    for number in count(pair.number % period, period):
        if [_place(placement, replace(kind, number=number), arm) for arm in arms] == wanted:
            yield number
        elif number > _MAX_LOOKED_AT:
            raise ConfigError("So many repetitions have no place beside each other; ask for fewer.")


def _place(placement: Placement, pair: Pair, arm: Arm) -> tuple[str, int]:
    call = placement.of_pair(
        Call(tenant=pair.reader, prompt="", max_tokens=1, conversation=None), pair, arm
    )
    return call.route.value, call.replica
