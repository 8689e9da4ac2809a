"""`kvward demo`: one engine, once leaking and once behind the ward, audited both times."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from kvward.audit.plan import Sizes, Tier
from kvward.audit.report import AuditReport, render_html, render_text
from kvward.audit.verdict import Verdict
from kvward.cli.audit import audit_with_progress
from kvward.cli.auditing import PAGE_NAME, REPORT_NAME, AuditRequest
from kvward.cli.gateway import POLICY_NAME
from kvward.cli.process import ServerProcess
from kvward.cli.restart import Reuse, ask_after, ask_before
from kvward.errors import ConfigError
from kvward.gateway import generate_api_key, render_policy
from kvward.scope import create_root_key
from kvward.terms import Channel, ExitCode, Outcome, ProbeScope, SharingLevel

_TENANTS = ("acorn", "birch")
_DEFECTS = ("scope-missing", "reuse-in-flight", "early-publish")
_SIZES = Sizes(content_outputs=600, control_outputs=60, pairs=40)
_PROMPT_TOKENS = 512
_HEADING = "One engine, leaking and behind the ward"
_INTRODUCTION = (
    "Both audits ran against the same laboratory engine with the same three defects planted: its "
    "cache key forgets the tenant, blocks are handed out again while they are read, and prefixes "
    "can be found before they are written. The first time callers reach it directly; the second "
    "time through the gateway, which decides every request's scope, and with leases on the "
    "engine's blocks, which refuse a read that the lease does not cover. The gateway alone would "
    "mend the first defect only in an engine that honours its field, and the others not at all."
)


@dataclass(frozen=True, kw_only=True)
class _Stage:
    name: str
    title: str
    note: str
    arguments: list[str]
    keys: Mapping[str, str]
    restarted: bool


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("kvward-demo"),
    show_default=True,
    help="Folder for reports, histories and logs.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Random by default.")
def command(*, out: Path, seed: int | None) -> int:  # fmt: skip
    """Audit a leaking engine, then the same engine behind the ward, and write a report.

    Exits with 0 when the leaking run was caught and the warded run was not flagged; content and
    usage counters decide, times may be inconclusive on a busy machine.
    """
    began = time.monotonic()
    chosen = secrets.randbits(31) if seed is None else seed
    reports = []
    stages = _stages(out)
    for stage in stages:
        click.echo(f"\n{stage.title}: {stage.note}", err=True)
        with ServerProcess(stage.arguments, log=out / stage.name / "server.log") as server:
            request = AuditRequest(
                url=server.url,
                keys=stage.keys,
                model=None,
                tier=Tier.SMOKE,
                seed=chosen,
                channels=list(Channel),
                declared_level=SharingLevel.CONVERSATION,
                clients=16,
                prompt_tokens=_PROMPT_TOKENS,
                sizes=_SIZES,
                title=stage.title,
                note=stage.note,
            )
            result = audit_with_progress(request, folder=out / stage.name)
            if stage.restarted:
                ask_before(server.url, stage.keys, seed=chosen)
        if result is None:
            continue
        report = result[0]
        (out / stage.name / REPORT_NAME).write_bytes(report.to_json())
        click.echo(render_text(report) + "\n")
        reports.append(report)
    reuse = _restart(out, stages[-1], seed=chosen)
    told = (
        f"After the audit the warded engine was stopped and started again over its sealed store. "
        f"Of a prompt of {reuse.prompt_tokens} tokens asked before, its owner had {reuse.owner} "
        f"reused, another conversation of the same tenant {reuse.other_conversation}, and "
        f"another tenant {reuse.other_tenant}."
    )
    page = render_html(reports, heading=_HEADING, introduction=f"{_INTRODUCTION} {told}")
    (out / PAGE_NAME).write_text(page, encoding="utf-8")
    complaints = demo_complaints(leaking=reports[0], warded=reports[1]) + reuse.complaints()
    for complaint in complaints:
        click.echo(f"The demo did not show what it should: {complaint}")
    if not complaints:
        click.echo(_summary(*reports))
        click.echo(told)
    click.echo(f"Report: {out / PAGE_NAME}   ({time.monotonic() - began:.0f} s)")
    return ExitCode.INCONCLUSIVE if complaints else ExitCode.NOT_OBSERVED


def demo_complaints(*, leaking: AuditReport, warded: AuditReport) -> list[str]:
    """Return what is wrong with the two audits, in sentences; nothing when all is as it should.

    The leaking engine must be caught by content and by metadata at S3. The warded one must have
    `NOT_OBSERVED` in every content and metadata cell and must not be `VIOLATED` by time.
    """
    complaints = [
        f"the leaking engine was not caught by {channel}."
        for channel in (Channel.CONTENT, Channel.METADATA)
        if _cell(leaking, channel).outcome is not Outcome.VIOLATED
    ]
    for verdict in warded.verdicts:
        gate = verdict.channel is not Channel.TIMING
        if verdict.outcome is Outcome.VIOLATED or (
            gate and verdict.outcome is not Outcome.NOT_OBSERVED
        ):
            complaints.append(
                f"the warded engine is {verdict.outcome} in {verdict.channel} {verdict.scope}."
            )
    return complaints


def _stages(out: Path) -> list[_Stage]:
    defects = [part for name in _DEFECTS for part in ("--defect", name)]
    keys = {name: generate_api_key() for name in _TENANTS}
    folder = out / "ward"
    policy, root = folder / POLICY_NAME, folder / "root.key"
    try:
        # Whatever an earlier demo stored there was sealed under a key that goes with it.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        create_root_key(root)
        policy.write_text(
            render_policy(
                deployment="demo",
                tenants={name: [digest] for name, (_, digest) in keys.items()},
                level=SharingLevel.CONVERSATION,
                upstream="",
                keep=True,
            ),
            encoding="utf-8",
        )
    except OSError as exc:
        raise ConfigError(
            f"{out} cannot be written: {exc.strerror}.", hint="Choose another --out."
        ) from exc
    given = {name: key for name, (key, _) in keys.items()}
    return [
        _Stage(
            name="leaking",
            title="Leaking",
            note=f"the bare engine with {', '.join(_DEFECTS)}.",
            arguments=["lab", "serve", *defects],
            keys=given,
            restarted=False,
        ),
        _Stage(
            name="warded",
            title="Behind the ward",
            note="the same engine and defects; gateway, leases on its blocks, a sealed store.",
            arguments=["serve", "--config", str(policy), *defects],
            keys=given,
            restarted=True,
        ),
    ]


def _restart(out: Path, stage: _Stage, *, seed: int) -> Reuse:
    """Start the last engine once more and ask what its predecessor's state is good for."""
    click.echo(f"\n{stage.title}, after a restart: the same store, a new engine.", err=True)
    with ServerProcess(stage.arguments, log=out / stage.name / "restarted.log") as server:
        return ask_after(server.url, stage.keys, seed=seed)


def _summary(leaking: AuditReport, warded: AuditReport) -> str:
    leak, ward = _cell(leaking, Channel.CONTENT), _cell(warded, Channel.CONTENT)
    bound = "none" if ward.bound is None else f"{ward.bound:.2g}"
    control = ward.controls[0]
    return (
        f"Leaking: {leak.reason}\n"
        f"Behind the ward: none in {ward.run} outputs, so at most {bound} per output "
        f"({ward.confidence:.0%}); the control read its own canary {control.seen} of "
        f"{control.tried} times."
    )


def _cell(report: AuditReport, channel: Channel) -> Verdict:
    return next(
        verdict
        for verdict in report.verdicts
        if verdict.channel is channel and verdict.scope is ProbeScope.S3
    )
