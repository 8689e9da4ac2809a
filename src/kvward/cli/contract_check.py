"""`kvward contract check`: what is promised beside what audits showed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import click
import msgspec

from kvward.audit.history import parse_history, read_history
from kvward.audit.judge import judge
from kvward.cli.auditing import HISTORY_NAME, REPORT_NAME
from kvward.cli.contract_options import AS_JSON, CONTRACT_FILE, TODAY
from kvward.contract import ClauseCheck, Standing, check, read_contract
from kvward.errors import ReportError
from kvward.terms import ExitCode, StateEnd, VerdictRecord

_MAX_REPORT_BYTES = 100_000_000


class _Started(msgspec.Struct):
    plan_digest: str
    started_unix_s: int


@click.command("check")
@click.argument("contract", type=CONTRACT_FILE)
@click.argument(
    "audits",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@TODAY
@AS_JSON
def command(*, contract: Path, audits: tuple[Path, ...], today: date, as_json: bool) -> int:
    """Say for each clause of CONTRACT whether AUDITS show it, contradict it, or say nothing.

    Each of AUDITS is the folder that `kvward audit --out` wrote. The verdicts are worked out again
    from its history; its report only says when. Who wrote the history is not checked.

    Exit codes: 0 every promised clause is shown with the bound that the contract asks for, 1 one is
    contradicted, 2 one is stale, not tested or not bounded that far, 4 an audit's folder does not
    hold together.
    """
    promised = read_contract(contract)
    records = [record for folder in audits for record in read_records(folder)]
    rows = check(promised, records, today=today)
    if as_json:
        value = msgspec.to_builtins({"day": today, "clauses": rows})
        click.echo(json.dumps(value, indent=2))
    else:
        for row in rows:
            click.echo(_line(row))
            for reason in row.reasons:
                click.echo(f"    {reason}")
    return _exit_code(rows)


def read_records(folder: Path) -> Iterator[VerdictRecord]:
    """Work the verdicts of an audit out again from its history.

    Raises:
        AuditError: there is no history that can be read.
        ReportError: the report is missing, or is another audit's.
    """
    history = folder / HISTORY_NAME
    data = read_history(history)
    plan, trials = parse_history(data, name=str(history))
    digest = hashlib.sha256(data).hexdigest()
    day = _day(folder / REPORT_NAME, plan_digest=plan.digest)
    endings = frozenset(
        end
        for end, done in ((StateEnd.ERASURE, plan.erases), (StateEnd.LIFETIME, plan.lifetime_s > 0))
        if done
    )
    for verdict in judge(plan, trials, history_digest=digest).verdicts:
        if not verdict.is_control:
            yield VerdictRecord(
                channel=verdict.channel,
                scope=verdict.scope,
                tier=verdict.tier,
                outcome=verdict.outcome,
                endings=endings,
                bound=verdict.bound,
                confidence=verdict.confidence,
                day=day,
                reason=verdict.reason,
                source=digest,
            )


def _day(report: Path, *, plan_digest: str) -> date:
    try:
        with report.open("rb") as file:
            started = msgspec.json.decode(file.read(_MAX_REPORT_BYTES), type=_Started)
        day = datetime.fromtimestamp(started.started_unix_s, UTC).date()
    except (OSError, ValueError, OverflowError) as exc:
        raise ReportError(
            f"{report} does not say when the audit was.",
            hint="Give the folder that `kvward audit --out` wrote, whole.",
        ) from exc
    if started.plan_digest != plan_digest:
        raise ReportError(
            f"{report} is the report of another audit than the history beside it.",
            hint="Give the folder as it was written.",
        )
    return day


def _line(row: ClauseCheck) -> str:
    place = "" if row.tier is None else f" in the {row.tier} tier"
    until = "" if row.until is None else f" until {row.until}"
    bound = "" if row.bound is None else f", at most {row.bound:.2g}"
    wanted = ", more than the contract allows" if row.within is False else ""
    return f"{row.clause}{place}: {row.standing}{until}{bound}{wanted}"


def _exit_code(rows: Sequence[ClauseCheck]) -> ExitCode:
    standings = {row.standing for row in rows}
    if Standing.CONTRADICTED in standings:
        return ExitCode.VIOLATED
    wanting = standings != {Standing.SHOWN} or any(row.within is False for row in rows)
    return ExitCode.INCONCLUSIVE if wanting else ExitCode.NOT_OBSERVED
