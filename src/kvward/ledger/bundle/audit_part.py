"""One audit of a bundle: its files, held against each other, the log and the recomputation.

How verdicts are worked out from a history is not known here; it is handed in, as a function of
bytes to plain data.

Source: docs/spec/bundle-v1.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kvward.errors import BundleError
from kvward.ledger.audit_entry import verdict_entries
from kvward.ledger.bundle.log_part import LogPart
from kvward.ledger.bundle.manifest import Role, audit_file, audit_id_of
from kvward.ledger.bundle.result import AuditRow, Verification
from kvward.ledger.bundle.signatures import Keys
from kvward.ledger.document import sha256_hex
from kvward.ledger.entry import PlanPublished, VerdictReached
from kvward.ledger.statement import PAYLOAD_TYPE, AuditFacts, CellVerdict, make_statement

_CLOCK_MS = 1_000
"""How far clocks may be apart: the log's, the auditor's, and the one that steps in between."""
_SHOWN_DIFFERENCES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What a history says when it is judged again.

    Attributes:
        cells: In the plan's order.
        target_digest: Of the description of the target that the plan has.
        started_unix_s: When the audit began, as the report says.
        span_ns: From the first request sent to the last answer, on the auditor's own clock.
        differences: Where the report says something else than the history, in words.
    """

    plan_digest: str
    target_digest: str
    tool_version: str
    cells: tuple[CellVerdict, ...]
    started_unix_s: int
    span_ns: int
    differences: tuple[str, ...]


Recompute = Callable[[bytes, bytes], Recomputed]
"""Judges a history anew and compares the report with what comes of it; both are untrusted."""


def check_audit(
    files: Mapping[str, bytes],
    audit_id: str,
    log: LogPart,
    keys: Keys,
    result: Verification,
    *,
    contract_digest: str | None,
    recompute: Recompute,
) -> None:
    """Check one audit.

    Args:
        files: Those that the manifest lists. [untrusted]
        contract_digest: Of the contract in the bundle; None where there is none.
    Raises:
        VerificationError: It does not verify.
    """
    about = f"audit {audit_id}"
    plan, history, report, statement = (
        _file(files, role, audit_id)
        for role in (Role.PLAN, Role.HISTORY, Role.REPORT, Role.STATEMENT)
    )
    # (1) The history begins with the plan, whose digest names the audit.
    if audit_id_of(sha256_hex(plan)) != audit_id or not history.startswith(plan + b"\n"):
        raise BundleError("The history is not one of this plan, or the plan not that of its name.")
    # (2) The history says what the report says.
    found = recompute(history, report)
    if found.plan_digest != sha256_hex(plan):
        raise BundleError(
            "The plan is not written as this version writes it.",
            hint=f"Verify it with kvward {found.tool_version}.",
        )
    if found.differences:
        shown = "; ".join(found.differences[:_SHOWN_DIFFERENCES])
        more = len(found.differences) - _SHOWN_DIFFERENCES
        raise BundleError(
            f"The report is not what its history gives: {shown}"
            + (f"; and {more} more differences." if more > 0 else "."),
            hint=f"The plan was made by kvward {found.tool_version}.",
        )
    result.holds(about, "Every verdict and every number was worked out again from the history.")
    # (3) The log had the plan first, and has these verdicts and no others.
    published = _published(log.entries, found.plan_digest)
    if published[1].contract_digest not in {None, contract_digest}:
        raise BundleError("The plan was made for a contract that the bundle does not hold.")
    facts = AuditFacts(
        report_digest=sha256_hex(report),
        history_digest=sha256_hex(history),
        plan_digest=found.plan_digest,
        target_digest=found.target_digest,
        contract_digest=published[1].contract_digest,
        tool_version=found.tool_version,
        cells=found.cells,
    )
    reached = _reached(log.entries, facts, result, about)
    result.holds(about, "The log has the plan, and after it these verdicts on it.")
    _check_times(published, reached, found, result, about)
    # (4) Somebody signed just that.
    if keys.open_envelope(statement, payload_type=PAYLOAD_TYPE) != make_statement(facts):
        raise BundleError("The statement says something else than the files it is about.")
    result.holds(about, "The statement is signed, and says what the files say.")
    result.audits.append(
        AuditRow(audit_id=audit_id, plan_digest=found.plan_digest, cells=found.cells)
    )


def _file(files: Mapping[str, bytes], role: Role, audit_id: str) -> bytes:
    data = files.get(audit_file(role, audit_id))
    if data is None:
        raise BundleError(f"The audit's {role.value} is missing.")
    return data


def _published(
    entries: Sequence[tuple[int, object]], plan_digest: str
) -> tuple[int, PlanPublished]:
    for index, entry in entries:
        if isinstance(entry, PlanPublished) and entry.plan_digest == plan_digest:
            return index, entry
    raise BundleError("The log has no entry of the plan.")


def _reached(
    entries: Sequence[tuple[int, object]], facts: AuditFacts, result: Verification, about: str
) -> list[tuple[int, VerdictReached]]:
    """Return the first entry of each verdict."""
    logged = [
        (index, entry)
        for index, entry in entries
        if isinstance(entry, VerdictReached) and entry.plan_digest == facts.plan_digest
    ]
    if any(entry.history_digest != facts.history_digest for _, entry in logged):
        raise BundleError("The log has verdicts on this plan from another history.")
    if any(entry.report_digest != facts.report_digest for _, entry in logged):
        result.not_shown(about, "The log has verdicts of another report on the same history, too.")
    wanted = verdict_entries(facts, at_unix_ms=0)
    timeless = [(index, msgspec.structs.replace(entry, at_unix_ms=0)) for index, entry in logged]
    if any(
        entry.report_digest == facts.report_digest and entry not in wanted for _, entry in timeless
    ):
        raise BundleError("The log has a verdict on this plan that the report does not have.")
    found: dict[VerdictReached, tuple[int, VerdictReached]] = {}
    for (index, entry), (_, key) in zip(logged, timeless, strict=True):
        found.setdefault(key, (index, entry))
    for entry in wanted:
        if entry not in found:
            raise BundleError(f"The log has no verdict on {entry.channel} {entry.scope}.")
    return [found[entry] for entry in wanted]


def _check_times(
    published: tuple[int, PlanPublished],
    reached: Sequence[tuple[int, VerdictReached]],
    found: Recomputed,
    result: Verification,
    about: str,
) -> None:
    index, plan = published
    if any(later < index for later, _ in reached):
        raise BundleError("The log has a verdict before the plan that it is on.")
    first_ms = min((entry.at_unix_ms for _, entry in reached), default=plan.at_unix_ms)
    begun_ms = found.started_unix_s * 1_000
    if first_ms + _CLOCK_MS < begun_ms + found.span_ns // 1_000_000:
        raise BundleError("The log had a verdict before the last answer was seen.")
    between_ms = first_ms - plan.at_unix_ms
    # The report has whole seconds only.
    if plan.at_unix_ms >= begun_ms + 1_000 or between_ms + _CLOCK_MS < found.span_ns // 1_000_000:
        result.not_shown(
            about,
            "The plan was logged after the audit had begun; that it was fixed before is not shown.",
        )
    else:
        result.holds(about, "The plan was logged before the first request, by the log's clock.")
