"""The PROMISE: what a deployment guarantees about its cache, as data that can be compared."""

from kvward.contract.check import ClauseCheck, Standing, check
from kvward.contract.compare import Change, ClauseChange, Direction, compare
from kvward.contract.document import canonical_json, contract_digest, parse_contract, read_contract
from kvward.contract.lint import Remark, Severity, lint
from kvward.contract.model import Coverage, IsolationContract
from kvward.contract.render import render_markdown
from kvward.contract.schema import contract_schema

__all__ = [
    "Change",
    "ClauseChange",
    "ClauseCheck",
    "Coverage",
    "Direction",
    "IsolationContract",
    "Remark",
    "Severity",
    "Standing",
    "canonical_json",
    "check",
    "compare",
    "contract_digest",
    "contract_schema",
    "lint",
    "parse_contract",
    "read_contract",
    "render_markdown",
]
