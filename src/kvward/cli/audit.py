"""`kvward audit URL`: look for state that crosses from one tenant to another."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import click

from kvward.audit.history import Trial
from kvward.audit.plan import Plan, Tier
from kvward.audit.report import AuditReport, render_html, render_text
from kvward.audit.report.text import render_plan
from kvward.audit.run import Progress
from kvward.cli.auditing import (
    HISTORY_NAME,
    PAGE_NAME,
    REPORT_NAME,
    AuditRequest,
    run_audit,
)
from kvward.cli.credential import parse_key
from kvward.cli.gateway import LEVELS
from kvward.errors import ConfigError
from kvward.terms import CacheTier, Channel, ExitCode, Outcome, SharingLevel

EXIT_CODES = {
    Outcome.NOT_OBSERVED: ExitCode.NOT_OBSERVED,
    Outcome.VIOLATED: ExitCode.VIOLATED,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


@click.command("audit")
@click.argument("url")
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="NAME=KEY",
    help="A tenant and its API key, or NAME=env:VARIABLE; give two or more.",
)
@click.option(
    "--tier",
    type=click.Choice([tier.value for tier in Tier]),
    default=Tier.SMOKE.value,
    show_default=True,
    help="How much to look at.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    help="What the stack promises: decides whether reuse between two conversations of "
    "one tenant is a violation.",
)
@click.option(
    "--channel",
    "channels",
    multiple=True,
    type=click.Choice([channel.value for channel in Channel]),
    help="Read only this channel; may be given again. All by default.",
)
@click.option(
    "--flush-device",
    "flush_command",
    metavar="COMMAND",
    help="Run between priming and probing: restarts the engine or empties its own memory, so that "
    "what is still found lies in another tier.",
)
@click.option(
    "--cache-tier",
    type=click.Choice([t.value for t in (CacheTier.HOST, CacheTier.DISK, CacheTier.REMOTE)]),
    help="Which tier is left after --flush-device, for the verdicts.",
)
@click.option("--model", help="Model to ask for; the first one listed by default.")
@click.option("--seed", type=click.IntRange(min=0), help="Repeats an audit; random by default.")
@click.option("--clients", type=click.IntRange(1, 256), default=16, show_default=True)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(64, 100_000),
    default=512,
    show_default=True,
    help="Length of the prompts whose times are compared.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for history and reports; a new one by default.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="What to print; the folder holds all.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--plan-only", is_flag=True, help="Print the plan and send nothing of it.")
@click.option(
    "--authorised",
    is_flag=True,
    help="Say that the target's owner agrees; needed for any but a loopback address.",
)
def command(
    *,
    url: str,
    tenants: tuple[str, ...],
    tier: str,
    level: str | None,
    channels: tuple[str, ...],
    flush_command: str | None,
    cache_tier: str | None,
    model: str | None,
    seed: int | None,
    clients: int,
    prompt_tokens: int,
    out: Path | None,
    form: str,
    as_json: bool,
    plan_only: bool,
    authorised: bool,
) -> int:  # fmt: skip
    """Audit the OpenAI-compatible server at URL with two or more tenants' keys.

    Content is read from logprobs and needs the canary model to be served (`kvward canary-model`);
    usage counters and times are read from any model.
    """
    _check_authorised(url, authorised=authorised)
    if (flush_command is None) is not (cache_tier is None):
        raise ConfigError(
            "--flush-device and --cache-tier belong together.",
            hint="For example --flush-device 'systemctl restart engine' --cache-tier disk",
        )
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = out or Path(f"kvward-audit-{stamp}")
    request = AuditRequest(
        url=url,
        keys=_parse_tenants(tenants),
        model=model,
        tier=Tier(tier),
        seed=secrets.randbits(31) if seed is None else seed,
        channels=[Channel(channel) for channel in channels] or _all_channels(cache_tier),
        cache_tier=CacheTier.DEVICE if cache_tier is None else CacheTier(cache_tier),
        flush_command=flush_command,
        declared_level=None if level is None else SharingLevel(level),
        clients=clients,
        prompt_tokens=prompt_tokens,
        title=f"Audit of {url}",
    )
    result = audit_with_progress(request, folder=folder, plan_only=plan_only)
    if result is None:
        return ExitCode.NOT_OBSERVED
    report, _ = result
    page = render_html([report], heading=f"Cache isolation at {url}", introduction="")
    (folder / REPORT_NAME).write_bytes(report.to_json())
    (folder / PAGE_NAME).write_text(page, encoding="utf-8")
    printed = {"json": report.to_json().decode(), "html": page, "text": render_text(report)}
    click.echo(printed["json" if as_json else form])
    click.echo(f"History and reports are in {folder}", err=True)
    return EXIT_CODES[report.outcome]


def audit_with_progress(
    request: AuditRequest, *, folder: Path, plan_only: bool = False
) -> tuple[AuditReport, list[Trial]] | None:
    """Run an audit with its plan and a progress bar on standard error.

    Raises:
        KeyboardInterrupt: after saying where the part of the history is that there is.
    """
    bar = click.progressbar(length=1, label="connecting", file=sys.stderr, width=30)
    sent = False

    def on_plan(plan: Plan) -> bool:
        click.echo(render_plan(plan), err=True)
        bar.length = plan.num_requests
        return not plan_only

    def on_progress(progress: Progress) -> None:
        nonlocal sent
        sent = True
        bar.label = f"{progress.phase:19}"
        bar.length = progress.planned
        bar.update(1)

    running = run_audit(request, folder=folder, on_plan=on_plan, on_progress=on_progress)
    try:
        return asyncio.run(running)
    except KeyboardInterrupt:
        if sent:
            click.echo(
                f"Interrupted. The part of the history that was seen is kept in "
                f"{folder / HISTORY_NAME}; no verdict was reached.",
                err=True,
            )
        raise
    finally:
        bar.render_finish()


def _all_channels(cache_tier: str | None) -> list[Channel]:
    """Return what is read when nobody chose: content is read from the device tier only."""
    return list(Channel) if cache_tier is None else [Channel.METADATA, Channel.TIMING]


def _parse_tenants(texts: tuple[str, ...]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for text in texts:
        name, separator, key = text.partition("=")
        if not separator or not name or not key:
            # The text may hold a key, so it is not repeated.
            raise ConfigError(
                "A --tenant is not written as NAME=KEY.", hint="For example --tenant a=env:KEY_A"
            )
        if name in keys:
            raise ConfigError(f"The tenant {name} is given twice.", hint="Name them differently.")
        keys[name] = parse_key(key)
    if len(set(keys.values())) < len(keys):
        raise ConfigError(
            "Two tenants have one key, so the target cannot tell them apart.",
            hint="Use keys of two different tenants.",
        )
    if len(keys) < 2:
        raise ConfigError(
            "An audit needs two tenants: one whose state could leak and one who could read it.",
            hint="Give --tenant NAME=KEY twice, with keys of two different tenants.",
        )
    return keys


def _check_authorised(url: str, *, authorised: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"{url} is not a URL.", hint="Write it as http://HOST:PORT")
    try:
        loopback = ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        loopback = parts.hostname == "localhost"
    if not loopback and not authorised:
        raise ConfigError(
            f"{parts.hostname} is not this machine, and an audit is a load test.",
            hint="If its owner agrees, say so with --authorised.",
        )
