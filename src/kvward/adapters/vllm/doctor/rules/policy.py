"""Whether the parts of ours that are loaded would know their policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvward.adapters.vllm.doctor.finding import Finding, Severity
from kvward.adapters.vllm.doctor.rules.connector import connectors
from kvward.adapters.vllm.doctor.setup import WARD_CONNECTOR, WARD_MIDDLEWARE, Setup
from kvward.keeping import POLICY_VARIABLE


def find(setup: Setup) -> Iterator[Finding]:
    """Judge what stops the engine at its start: nothing is widened, and nothing is served."""
    if setup.environment.text(POLICY_VARIABLE) is not None:
        return
    for part in [WARD_MIDDLEWARE] * setup.has_ward + [
        WARD_CONNECTOR
        for connector in connectors(setup)
        if connector.get("kv_connector") == WARD_CONNECTOR and not _names_policy(connector)
    ]:
        yield Finding(
            id="policy-not-named",
            severity=Severity.UNKNOWN,
            setting=f"{part.rpartition('.')[2]} without {POLICY_VARIABLE}",
            why="It refuses to start without its policy, and none was seen here.",
            mend=f"Write {POLICY_VARIABLE}=FILE in front of the command, or say it with --env; "
            "`kvward gateway check FILE` says whether it would open.",
        )


def _names_policy(connector: Mapping[str, object]) -> bool:
    extra = connector.get("kv_connector_extra_config")
    return isinstance(extra, Mapping) and bool(extra.get("policy"))
