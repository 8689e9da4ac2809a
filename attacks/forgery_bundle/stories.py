"""Forgeries that agree with themselves: audits judged anew, logs written and signed anew."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from attacks.forgery_bundle.files import change_observation
from attacks.forgery_bundle.forgery import Forged, Forgery
from attacks.forgery_bundle.world import (
    CONTRACT,
    OTHER_SIGNER,
    SIGNER,
    Audited,
    World,
    made_up_trials,
    make_audit,
    make_log,
)
from kvward.audit.history import parse_history
from kvward.ledger.audit_entry import verdict_entries
from kvward.ledger.bundle.collecting import AuditFiles, collect_bundle
from kvward.ledger.bundle.manifest import FIXED_NAMES, Role
from kvward.ledger.bundle.writing import with_manifest
from kvward.ledger.document import sha256_hex
from kvward.ledger.entry import Entry, PlanPublished, VerdictReached
from kvward.ledger.note import NoteSigner


def iter_stories() -> Iterator[Forgery]:
    """Yield forgeries by whoever works a whole bundle out again."""
    for label, forge in {
        "an observation and all that follows, log as it was": partial(_rejudged, None),
        "an observation and all that follows, log of another key": partial(_rejudged, OTHER_SIGNER),
        "the same log, signed with another key": _signed_by_other,
        "the leaking audit without its leak, log of another key": _whitewashed,
        "a log without the plan that was not answered, of another key": _unplanned,
        "rolled back to an older state": _rolled_back,
        "rolled back, and grown again otherwise": _forked,
        "the last entry of the log replaced by the log's own key": _replaced,
        "the plan without an answer left out by the log's own key": _plan_left_out,
        "verdicts written down before their plan, by the log's own key": _verdict_first,
        "two sets of verdicts on one plan, by the log's own key": _twice,
        "a verdict that the report does not have, by the log's own key": _contradicted,
        "another plan in the report's place": _other_plan,
        "another contract": _other_contract,
    }.items():
        yield Forgery(label=f"story: {label}", forge=forge)


def _bundle(
    world: World,
    entries: Sequence[Entry],
    *,
    signer: NoteSigner,
    clean: AuditFiles | None = None,
    leaking: AuditFiles | None = None,
) -> dict[str, bytes]:
    return collect_bundle(
        make_log(entries, signer=signer, older_size=3),
        [clean or world.clean.files, leaking or world.leaking.files],
        keys=[SIGNER.verifier, OTHER_SIGNER.verifier]
        if signer is OTHER_SIGNER
        else [SIGNER.verifier],
        contract=CONTRACT,
        contract_envelope=None,
        all_entries=True,
    )


def _other_verdicts(entries: Sequence[Entry], old: Audited, new: Audited) -> list[Entry]:
    """Return entries with the verdicts on one audit replaced by those on another."""
    kept: list[Entry] = []
    wanted = iter(verdict_entries(new.facts, at_unix_ms=0))
    for entry in entries:
        is_old = isinstance(entry, VerdictReached) and (entry.plan_digest == old.facts.plan_digest)
        kept.append(
            msgspec.structs.replace(next(wanted), at_unix_ms=entry.at_unix_ms) if is_old else entry
        )
    return kept


def _observed_otherwise(dice: random.Random, world: World, signer: NoteSigner) -> Audited:
    history = change_observation(dice, world.leaking.files.history)
    plan, trials = parse_history(history, name="forged")
    return make_audit(plan, trials, contract_digest=sha256_hex(CONTRACT), signer=signer)


def _rejudged(signer: NoteSigner | None, dice: random.Random, world: World) -> Forged:
    audited = _observed_otherwise(dice, world, signer or OTHER_SIGNER)
    if signer is None:
        files = world.bundle(world.log, leaking=audited.files)
    else:
        entries = _other_verdicts(world.entries, world.leaking, audited)
        files = _bundle(world, entries, signer=signer, leaking=audited.files)
    return Forged(files=files, known=_maybe(dice, world))


def _whitewashed(dice: random.Random, world: World) -> Forged:
    plan, _ = parse_history(world.leaking.files.history, name="forged")
    audited = make_audit(
        plan,
        made_up_trials(plan, leaks=False),
        contract_digest=sha256_hex(CONTRACT),
        signer=OTHER_SIGNER,
    )
    entries = _other_verdicts(world.entries, world.leaking, audited)
    files = _bundle(world, entries, signer=OTHER_SIGNER, leaking=audited.files)
    return Forged(files=files, known=_maybe(dice, world))


def _signed_by_other(dice: random.Random, world: World) -> Forged:
    files = _bundle(world, world.entries, signer=OTHER_SIGNER)
    return Forged(files=files, known=_maybe(dice, world))


def _unplanned(dice: random.Random, world: World) -> Forged:
    files = _bundle(world, _without_unanswered(world), signer=OTHER_SIGNER)
    return Forged(files=files, known=_maybe(dice, world))


def _rolled_back(dice: random.Random, world: World) -> Forged:
    """The log of before its last entries, as its own key signed it then."""
    size = dice.randrange(7, len(world.entries) - 1)
    files = collect_bundle(
        make_log(world.entries[:size]),
        [world.clean.files],
        keys=[SIGNER.verifier],
        contract=CONTRACT,
        contract_envelope=None,
        all_entries=True,
    )
    return Forged(files=files, known=world.known)


def _forked(dice: random.Random, world: World) -> Forged:
    """The log's own key tells another story from some entry on."""
    at = dice.randrange(len(world.entries) - 1)
    entries = list(world.entries)
    entries[at] = msgspec.structs.replace(
        entries[at], at_unix_ms=entries[at].at_unix_ms + dice.randrange(1, 90)
    )
    return Forged(files=_bundle(world, entries, signer=SIGNER), known=world.known)


def _replaced(dice: random.Random, world: World) -> Forged:
    """What is known does not cover the last entry; the verdict in it is not the audit's."""
    entries = list(world.entries)
    entries[-1] = msgspec.structs.replace(world.entries[-1], bound_ppb=dice.randrange(1, 10**9))
    return Forged(files=_bundle(world, entries, signer=SIGNER), known=world.known)


def _plan_left_out(_: random.Random, world: World) -> Forged:
    entries = _without_unanswered(world)
    # As long as it was, so that its size gives nothing away.
    entries.append(entries[5])
    return Forged(files=_bundle(world, entries, signer=SIGNER), known=world.known)


def _verdict_first(dice: random.Random, world: World) -> Forged:
    """Nobody kept a checkpoint; the order alone gives it away."""
    entries = list(world.entries)
    plans = [
        n
        for n, entry in enumerate(entries)
        if isinstance(entry, PlanPublished) and entry.plan_digest != world.unanswered.digest
    ]
    entries.append(entries.pop(dice.choice(plans)))
    return Forged(files=_bundle(world, entries, signer=SIGNER), known=None)


def _twice(dice: random.Random, world: World) -> Forged:
    """Nobody kept a checkpoint; the same plan was run until it looked well."""
    first = next(
        entry
        for entry in world.entries
        if isinstance(entry, VerdictReached) and entry.plan_digest == world.clean.facts.plan_digest
    )
    other = msgspec.structs.replace(first, history_digest=dice.randbytes(32).hex())
    entries = [*world.entries]
    entries.insert(dice.randrange(5, len(entries) + 1), other)
    return Forged(files=_bundle(world, entries, signer=SIGNER), known=None)


def _contradicted(dice: random.Random, world: World) -> Forged:
    """Nobody kept a checkpoint; beside the report's verdict stands another one of the report."""
    verdicts = [entry for entry in world.entries if isinstance(entry, VerdictReached)]
    other = msgspec.structs.replace(dice.choice(verdicts), bound_ppb=dice.randrange(1, 10**8))
    entries = list(world.entries)
    entries.insert(dice.randrange(5, len(entries) + 1), other)
    return Forged(files=_bundle(world, entries, signer=SIGNER), known=None)


def _other_plan(dice: random.Random, world: World) -> Forged:
    """Plan, history's head and report agree, and are of a plan that was never logged."""
    plan, trials = parse_history(world.clean.files.history, name="forged")
    changes = dice.choice(
        [{"alpha": 0.2}, {"confidence": 0.5}, {"seed": plan.seed + 1}, {"run_nonce": "x"}]
    )
    audited = make_audit(
        replace(plan, **changes),
        trials,
        contract_digest=sha256_hex(CONTRACT),  # type: ignore[arg-type]
    )
    return Forged(files=world.bundle(world.log, clean=audited.files), known=world.known)


def _other_contract(dice: random.Random, world: World) -> Forged:
    files = dict(world.files)
    value = json.loads(CONTRACT) | {"levels": dice.choice([["tenant"], ["public"], []])}
    files[FIXED_NAMES[Role.CONTRACT]] = json.dumps(value).encode()
    return Forged(files=with_manifest(files), known=world.known)


def _without_unanswered(world: World) -> list[Entry]:
    return [
        entry
        for entry in world.entries
        if not isinstance(entry, PlanPublished) or entry.plan_digest != world.unanswered.digest
    ]


def _maybe(dice: random.Random, world: World) -> bytes | None:
    """Whoever verifies may have kept a checkpoint, or not."""
    return world.known if dice.random() < 0.5 else None
