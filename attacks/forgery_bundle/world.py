"""A log, two small audits in it, and the genuine bundle that all forgeries start from.

The audits are made up: what an isolating engine would have answered, and what a leaking one would.
They are small, so that judging one again costs milliseconds. Deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kvward.audit.description import target_digest
from kvward.audit.exchange import Ending
from kvward.audit.history import Arm, Trial
from kvward.audit.judge import judge
from kvward.audit.pairs import Pair, iter_pairs
from kvward.audit.plan import Plan, Sizes, Tier
from kvward.audit.planning import make_plan
from kvward.audit.report.model import make_report
from kvward.cli.recomputing import cell_verdict
from kvward.ledger.audit_entry import plan_entry, verdict_entries
from kvward.ledger.bundle.collecting import AuditFiles, LogFiles, collect_bundle
from kvward.ledger.checkpoint import Checkpoint, sign_checkpoint
from kvward.ledger.document import sha256_hex, to_canonical_json
from kvward.ledger.dsse import sign_envelope
from kvward.ledger.entry import ContractPublished, Entry, PolicyChanged, encode_entry
from kvward.ledger.merkle import leaf_hash, tree_root
from kvward.ledger.note import NoteSigner
from kvward.ledger.statement import PAYLOAD_TYPE, AuditFacts, make_statement
from kvward.terms import Channel, ProbeScope

ORIGIN = "log.example/1"
SIGNER = NoteSigner(ORIGIN, b"\x01" * 32)
OTHER_SIGNER = NoteSigner(ORIGIN, b"\x02" * 32)
"""Somebody else, who calls himself the same."""
BEGUN_UNIX_S = 1_800_000_000
CONTRACT = to_canonical_json({"format": "made up", "levels": ["conversation"]})
_STEP_NS = 1_000_000
_PAIRS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """One audit, as its folder holds it, and what a log keeps of it."""

    facts: AuditFacts
    files: AuditFiles


def made_up_plan(seed: int) -> Plan:
    """Return a small plan: counters of reuse, four pairs for each scope."""
    return make_plan(
        url="http://127.0.0.1:1",
        model="canary",
        tenants=["a", "b"],
        tier=Tier.SMOKE,
        seed=seed,
        channels=[Channel.METADATA],
        declared_level=None,
        clients=1,
        prompt_tokens=64,
        sizes=Sizes(content_outputs=0, control_outputs=0, pairs=_PAIRS),
        run_nonce=f"{seed:016x}",
    )


def made_up_trials(plan: Plan, *, leaks: bool) -> list[Trial]:
    """Return what came of a plan; one that leaks reports another tenant's reuse."""
    trials: list[Trial] = []
    for pair in iter_pairs(plan):
        for arm in (Arm.PRIME, Arm.PROBE_PRIMED, Arm.PROBE_UNPRIMED):
            trials.append(_trial(pair, arm, len(trials), leaks=leaks))
    return trials


def make_audit(
    plan: Plan,
    trials: Sequence[Trial],
    *,
    contract_digest: str | None,
    signer: NoteSigner = SIGNER,
) -> Audited:
    """Write down an audit as its folder would hold it, and sign the statement about it."""
    lines = [plan.to_json(), *(msgspec.json.encode(trial) for trial in trials)]
    history = b"".join(line + b"\n" for line in lines)
    digest = sha256_hex(history)
    report = make_report(
        title="Audit of a made-up stack",
        note="",
        plan=plan,
        judgement=judge(plan, trials, history_digest=digest),
        trials=trials,
        started_unix_s=BEGUN_UNIX_S,
        duration_s=0.25,
    )
    facts = AuditFacts(
        report_digest=sha256_hex(report.to_json()),
        history_digest=digest,
        plan_digest=plan.digest,
        target_digest=target_digest(plan),
        contract_digest=contract_digest,
        tool_version=plan.tool_version,
        cells=tuple(cell_verdict(verdict) for verdict in report.verdicts),
    )
    statement = sign_envelope(make_statement(facts), PAYLOAD_TYPE, signers=[signer])
    files = AuditFiles(
        plan=plan.to_json(), history=history, report=report.to_json(), statement=statement
    )
    return Audited(facts=facts, files=files)


def make_log(
    entries: Sequence[Entry], *, signer: NoteSigner = SIGNER, older_size: int | None = None
) -> LogFiles:
    """Return a log of entries with its checkpoint."""
    written = [encode_entry(entry) for entry in entries]
    note, checkpoint = _sign(written, signer)
    older = None if older_size is None else _sign(written[:older_size], signer)
    return LogFiles(note=note, checkpoint=checkpoint, entries=written, older=older)


class World:
    """What there is.

    Attributes:
        clean, leaking: Two audits.
        unanswered: A plan that was published and never answered.
        entries: Of the log.
        log: With all of them; its older checkpoint has the first three.
        files: Of the genuine bundle.
        known: The checkpoint that whoever verifies has kept: one entry before the last.
    """

    def __init__(self) -> None:
        digest = sha256_hex(CONTRACT)
        plans = [made_up_plan(seed) for seed in (1, 2, 3)]
        self.clean, self.leaking = (
            make_audit(plan, made_up_trials(plan, leaks=leaks), contract_digest=digest)
            for plan, leaks in zip(plans[:2], (False, True), strict=True)
        )
        self.unanswered = plans[2]
        self.entries = self._entries([plan.digest for plan in plans], digest)
        self.log = make_log(self.entries, older_size=3)
        self.files = self.bundle(self.log)
        self.known = make_log(self.entries[:-1]).note

    def bundle(self, log: LogFiles, **changes: AuditFiles) -> dict[str, bytes]:
        """Return the files of a bundle of both audits.

        Args:
            changes: Other files for `clean` or `leaking`.
        """
        return collect_bundle(
            log,
            [changes.get("clean", self.clean.files), changes.get("leaking", self.leaking.files)],
            keys=[SIGNER.verifier],
            contract=CONTRACT,
            contract_envelope=None,
            all_entries=True,
        )

    def _entries(self, plan_digests: Sequence[str], contract_digest: str) -> list[Entry]:
        begun_ms = BEGUN_UNIX_S * 1_000
        published = [
            plan_entry(plan, at_unix_ms=begun_ms - 500 + number, contract_digest=contract_digest)
            for number, plan in enumerate(plan_digests)
        ]
        return [
            ContractPublished(
                at_unix_ms=begun_ms - 900, contract_digest=contract_digest, version=1
            ),
            *published,
            *verdict_entries(self.clean.facts, at_unix_ms=begun_ms + 5_000),
            PolicyChanged(at_unix_ms=begun_ms + 5_500, policy_digest="9" * 64),
            *verdict_entries(self.leaking.facts, at_unix_ms=begun_ms + 6_000),
        ]


def _sign(entries: Sequence[bytes], signer: NoteSigner) -> tuple[bytes, Checkpoint]:
    root = tree_root([leaf_hash(entry) for entry in entries])
    checkpoint = Checkpoint(signer.name, len(entries), root)
    return sign_checkpoint(checkpoint, signer), checkpoint


def _trial(pair: Pair, arm: Arm, number: int, *, leaks: bool) -> Trial:
    writes = arm is Arm.PRIME
    reused = pair.scope is ProbeScope.S0 or (leaks and pair.scope is ProbeScope.S3)
    cached = 48 if reused and arm is Arm.PROBE_PRIMED else 0
    return Trial(
        number=number,
        arm=arm,
        tenant=pair.writer if writes else pair.reader,
        conversation=f"{pair.scope.lower()}-{pair.number}",
        scope=pair.scope,
        pair=pair.number,
        coin=pair.coin,
        first=None if writes else (arm is Arm.PROBE_PRIMED) == (pair.first == pair.coin),
        prompt=pair.prompts[0].recipe,
        prompt_words=64,
        own_words=(),
        ending=Ending.DONE,
        status=200,
        start_ns=number * _STEP_NS,
        ttft_ns=_STEP_NS // 3,
        total_ns=_STEP_NS // 2,
        text="",
        top_logprobs=(),
        prompt_tokens=64,
        completion_tokens=1,
        cached_tokens=cached,
        response_ids=(),
        error=None,
    )
