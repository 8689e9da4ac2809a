"""One audit as an in-toto statement: what was tested, with what result, about which files.

The statement is a function of its arguments, byte for byte, so that whoever has the files can make
it again and compare. in-toto knows three results; ours are told by them like this:

| kvward | in-toto | its list |
| --- | --- | --- |
| NOT_OBSERVED: nothing seen within the stated bound | PASSED | `passedTests` |
| INCONCLUSIVE: cannot be told | WARNED | `warnedTests` |
| VIOLATED | FAILED | `failedTests` |

Names of tests are "channel scope", such as "metadata S3". Tenants, addresses and models are not
named; a digest of the target's description is among the subjects instead.

Source: in-toto Statement v1; test-result predicate v0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvward.ledger.document import to_canonical_json
from kvward.terms import CacheTier, Channel, ClauseId, Outcome, ProbeScope, merge_outcomes

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"

RESULTS = {
    Outcome.NOT_OBSERVED: "PASSED",
    Outcome.INCONCLUSIVE: "WARNED",
    Outcome.VIOLATED: "FAILED",
}
_LISTS = {
    Outcome.NOT_OBSERVED: "passedTests",
    Outcome.INCONCLUSIVE: "warnedTests",
    Outcome.VIOLATED: "failedTests",
}


class CellVerdict(NamedTuple):
    """What was decided about one cell.

    Attributes:
        clause: Of the contract; None where the log has no word for it.
        bound_ppb: Upper limit of the rate in parts per billion, rounded up; None where nothing
            bounds it.
    """

    channel: Channel
    scope: ProbeScope
    outcome: Outcome
    tier: CacheTier
    clause: ClauseId | None
    bound_ppb: int | None

    @property
    def name(self) -> str:
        """Return the name of the test, such as "metadata S3"."""
        return f"{self.channel.value} {self.scope.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFacts:
    """What a statement says of one audit. Digests are SHA-256, 64 hexadecimal digits.

    Attributes:
        target_digest: Of the description of the target, as the spec of bundles has it.
        contract_digest: None where the audit was made without a contract.
        tool_version: Of the kvward that fixed the plan.
        cells: In the plan's order.
    """

    report_digest: str
    history_digest: str
    plan_digest: str
    target_digest: str
    contract_digest: str | None
    tool_version: str
    cells: Sequence[CellVerdict]

    @property
    def outcome(self) -> Outcome:
        """Return the strongest outcome of all cells."""
        return merge_outcomes([cell.outcome for cell in self.cells])


def make_statement(facts: AuditFacts) -> bytes:
    """Return the statement about an audit as canonical JSON."""
    subjects = [
        _resource("report.json", facts.report_digest),
        _resource("history.jsonl", facts.history_digest),
        _resource("plan.json", facts.plan_digest),
        _resource("target", facts.target_digest),
    ]
    configuration: list[dict[str, object]] = [
        {"name": "kvward", "uri": f"pkg:pypi/kvward@{facts.tool_version}"},
        _resource("plan.json", facts.plan_digest),
    ]
    if facts.contract_digest is not None:
        contract = _resource("contract.json", facts.contract_digest)
        subjects.append(contract)
        configuration.append(contract)
    predicate: dict[str, object] = {
        "result": RESULTS[facts.outcome],
        "configuration": configuration,
    }
    predicate |= {
        list_name: [cell.name for cell in facts.cells if cell.outcome is outcome]
        for outcome, list_name in _LISTS.items()
    }
    return to_canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": subjects,
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    )


def _resource(name: str, digest: str) -> dict[str, object]:
    return {"name": name, "digest": {"sha256": digest}}
