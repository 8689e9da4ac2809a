"""`kvward replay FINDING`: send a finding's requests again and say whether it is still there."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from kvward.audit.replay import (
    MAX_REPORT_BYTES,
    Recorded,
    Subject,
    find_subject,
    parse_report,
    plan_replay,
)
from kvward.audit.report import AuditReport
from kvward.audit.report.plain import plain
from kvward.audit.report.text import bound_text
from kvward.audit.target import PRESETS, Controls, Limits, Preset, Target
from kvward.audit.verdict import Verdict
from kvward.cli.audit import EXIT_CODES
from kvward.cli.auditing import Watch, decide_audit, record_audit
from kvward.cli.credential import check_address, is_loopback
from kvward.cli.outputs import Outputs, report_options
from kvward.cli.progress import run_with_progress
from kvward.cli.targeting import (
    AUTHORISED,
    MAX_REQUESTS,
    MAX_RPS,
    OUT,
    PLAN_ONLY,
    check_authorised,
    choose_controls,
    choose_preset,
    parse_tenants,
)
from kvward.errors import AuditError, ConfigError
from kvward.terms import CacheTier, ExitCode, Outcome


@click.command("replay")
@click.argument("finding")
@click.option(
    "--report",
    "report_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The audit's report.json, or what `kvward audit --json` printed.",
)
@click.option(
    "--base-url",
    "urls",
    multiple=True,
    metavar="URL",
    help="Send to this address instead of the report's; for replicas again, in their order.",
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="NAME=env:VARIABLE",
    help="A tenant of the report, and the environment variable that holds its API key; all of "
    "them. The key itself may stand there for a loopback address only.",
)
@click.option(
    "--repeat",
    type=click.IntRange(5, 2_000),
    default=40,
    show_default=True,
    help="How often a pair is sent, each time with fresh prompts and a positive control.",
)
@click.option("--model", help="Model to ask for; the report's by default.")
@click.option(
    "--preset",
    "preset_name",
    type=click.Choice(sorted(PRESETS)),
    help="What the server is; the report's by default.",
)
@click.option(
    "--template",
    "template_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file that describes a server without a preset.",
)
@click.option("--flush-device", "flush_command", metavar="COMMAND", help="As for `kvward audit`.")
@click.option(
    "--controls",
    "controls_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="As for `kvward audit`.",
)
@MAX_RPS
@MAX_REQUESTS
@OUT
@report_options
@PLAN_ONLY
@AUTHORISED
def command(
    *,
    finding: str,
    report_file: Path,
    urls: tuple[str, ...],
    tenants: tuple[str, ...],
    repeat: int,
    model: str | None,
    preset_name: str | None,
    template_file: Path | None,
    flush_command: str | None,
    controls_file: Path | None,
    max_rps: float | None,
    max_requests: int | None,
    out: Path | None,
    outputs: Outputs,
    plan_only: bool,
    authorised: bool,
) -> int:  # fmt: skip
    """Send the requests behind FINDING again and say whether it reproduces.

    FINDING is the id of a finding in the report, or a cell like timing-S3. Exits with 1 when it
    reproduces, 0 when it was not observed within the stated bound, 2 when that cannot be told.
    """
    recorded = _read(report_file)
    subject = find_subject(recorded, finding)
    addresses = urls or recorded.addresses
    # Where a report says to send keys to is no better than where the report comes from.
    for url in addresses:
        check_address(url)
        check_authorised(url, authorised=authorised)
    outputs.check()
    tier = recorded.plan.cache_tier
    keys = parse_tenants(tenants, literal=all(is_loopback(url) for url in addresses))
    if set(keys) != set(recorded.plan.tenants):
        names = ", ".join(plain(name, max_characters=80) for name in recorded.plan.tenants)
        raise ConfigError(
            "The tenants given are not those of the report.", hint=f"Give --tenant for: {names}"
        )
    again = _Again(
        recorded=recorded,
        subject=subject,
        name=finding,
        addresses=addresses,
        keys={name: keys[name] for name in recorded.plan.tenants},
        model=model or recorded.plan.model,
        preset=choose_preset(preset_name, template_file) or PRESETS.get(recorded.plan.preset),
        limits=Limits(max_rps=max_rps, max_requests=max_requests),
        controls=choose_controls(
            flush_command,
            controls_file,
            # An audit asks for both or none; here the report has said the tier.
            None if tier is CacheTier.DEVICE else tier.value,
        ),
        repeats=repeat,
    )
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = out or Path(f"kvward-replay-{stamp}")
    report = run_with_progress(
        lambda watch: again.run(folder, watch), folder=folder, plan_only=plan_only
    )
    if report is None:
        return ExitCode.NOT_OBSERVED
    click.echo(plain(report.note), err=True)
    outputs.write(report, folder=folder, heading=report.title)
    return EXIT_CODES[report.outcome]


def _read(path: Path) -> Recorded:
    try:
        with path.open("rb") as file:
            # One byte more than a report may have tells a larger one.
            return parse_report(file.read(MAX_REPORT_BYTES + 1))
    except OSError as exc:
        raise ConfigError(f"The report {path} cannot be read: {exc.strerror}.") from exc


class _Again:
    """One replay, ready to be run."""

    def __init__(
        self,
        *,
        recorded: Recorded,
        subject: Subject,
        name: str,
        addresses: tuple[str, ...],
        keys: dict[str, str],
        model: str,
        preset: Preset | None,
        limits: Limits,
        controls: Controls,
        repeats: int,
    ) -> None:
        self._recorded = recorded
        self._subject = subject
        self._name = name
        self._addresses = addresses
        self._keys = keys
        self._model = model
        self._preset = preset
        self._limits = limits
        self._controls = controls
        self._repeats = repeats

    async def run(self, folder: Path, watch: Watch) -> AuditReport | None:
        """Send, record, decide; None when the one who watches ended it with the plan."""
        target = Target(
            self._addresses,
            self._keys,
            model=self._model,
            max_connections=4 * self._recorded.plan.clients,
            preset=self._preset,
            stream=self._recorded.plan.streamed,
            limits=self._limits,
        )
        async with target:
            for route in self._recorded.plan.routes:
                target.route(route)
            replay = plan_replay(
                self._recorded,
                self._subject,
                addresses=target.urls,
                model=target.model,
                preset=target.preset.name,
                preset_reason=target.choice.reason,
                run_nonce=secrets.token_hex(8),
                repeats=self._repeats,
            )
            recording = await record_audit(
                replay.plan,
                target,
                folder=folder,
                watch=watch,
                limits=self._limits,
                controls=self._controls.hiding(self._keys.values()),
                pairs=replay.pairs,
            )
        if recording is None:
            return None
        title = f"Replay of {self._name} at {' and '.join(self._addresses)}"
        report, _ = await decide_audit(replay.plan, recording, title=title, note="")
        return replace(report, note=told(report, self._subject))


def told(report: AuditReport, subject: Subject) -> str:
    """Return in one sentence whether what was found is still there."""
    verdict = _verdict_of(report, subject)
    match verdict.outcome:
        case Outcome.VIOLATED:
            again = _same_parties(verdict, subject)
            between = " Again between the same two tenants." if again else ""
            return f"It reproduces: {verdict.reason}{between}"
        case Outcome.NOT_OBSERVED:
            other = " Another cell is violated." if report.outcome is Outcome.VIOLATED else ""
            return f"It did not reproduce; {bound_text(verdict)}.{other}"
        case Outcome.INCONCLUSIVE:
            return f"Whether it reproduces cannot be told: {verdict.reason}"


def _verdict_of(report: AuditReport, subject: Subject) -> Verdict:
    cell = (subject.verdict.channel, subject.verdict.scope)
    for verdict in report.verdicts:
        if (verdict.channel, verdict.scope) == cell:
            return verdict
    raise AuditError("The replay decided nothing about the finding's cell.")


def _same_parties(verdict: Verdict, subject: Subject) -> bool:
    if subject.finding is None or subject.finding.source is None:
        return False
    wanted = [name.rpartition("/")[0] for name in (subject.finding.reader, subject.finding.source)]
    return any(
        [name.rpartition("/")[0] for name in (finding.reader, finding.source or "")] == wanted
        for finding in verdict.findings
    )
