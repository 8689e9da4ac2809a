"""`kvward audit URL`: look for state that crosses from one tenant to another."""

from __future__ import annotations

import asyncio
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import click

from kvward.audit.history import Trial
from kvward.audit.plan import Plan, Route, Tier
from kvward.audit.report import AuditReport
from kvward.audit.report.text import render_plan
from kvward.audit.run import Progress
from kvward.audit.target import (
    PRESETS,
    Control,
    Controls,
    Limits,
    Preset,
    Price,
    Spend,
    load_controls,
    load_template,
)
from kvward.audit.target.controls import flush_command as flush_controls
from kvward.cli.auditing import HISTORY_NAME, AuditRequest, run_audit
from kvward.cli.credential import check_address, is_in_environment, is_loopback, parse_key
from kvward.cli.gateway import LEVELS
from kvward.cli.outputs import Outputs, report_options
from kvward.errors import ConfigError
from kvward.terms import CacheTier, Channel, ExitCode, Outcome, SharingLevel

EXIT_CODES = {
    Outcome.NOT_OBSERVED: ExitCode.NOT_OBSERVED,
    Outcome.VIOLATED: ExitCode.VIOLATED,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


@click.command("audit")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="NAME=env:VARIABLE",
    help="A tenant, and the environment variable that holds its API key; give two or more. The "
    "key itself may stand there for a loopback address only.",
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
    help="Run between priming and probing: restarts the engine, so that what is still found lies "
    "in another tier; the target has to be seen away. Short for a --controls file.",
)
@click.option(
    "--controls",
    "controls_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file that says how to flush, restart, erase and the like; see docs/auditing.md.",
)
@click.option(
    "--cache-tier",
    type=click.Choice([t.value for t in (CacheTier.HOST, CacheTier.DISK, CacheTier.REMOTE)]),
    help="Which tier is left after --flush-device, for the verdicts.",
)
@click.option(
    "--preset",
    "preset_name",
    type=click.Choice(sorted(PRESETS)),
    help="What the server is; by default it is asked.",
)
@click.option(
    "--template",
    "template_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file that describes a server without a preset; see docs/auditing.md.",
)
@click.option(
    "--route",
    "routes",
    multiple=True,
    type=click.Choice([route.value for route in Route]),
    help="Send prompts to this kind of route; may be given again, and then each pair and prompt "
    "goes to one of them. The preset's first by default.",
)
@click.option(
    "--stream/--no-stream",
    default=True,
    show_default=True,
    help="Without, the time to the first token is the time to the whole answer.",
)
@click.option("--max-rps", type=float, help="Begin at most this many requests in a second.")
@click.option("--max-requests", type=int, help="Send at most this many requests.")
@click.option(
    "--max-tokens-total", type=int, help="Spend at most this many tokens, prompts and answers."
)
@click.option("--max-cost", type=float, help="Spend at most this many US dollars; needs --price.")
@click.option(
    "--price",
    metavar="PROMPT[,ANSWER]",
    help="US dollars for a million tokens; without the second number both cost the same.",
)
@click.option("--model", help="Model to ask for; the first one listed by default.")
@click.option("--seed", type=click.IntRange(min=0), help="Repeats an audit; random by default.")
@click.option("--clients", type=click.IntRange(1, 256), default=16, show_default=True)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(64, 100_000),
    help="Length of the prompts whose times are compared; 512 by default, or more where a "
    "server caches long prompts only.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for history and reports; a new one by default.",
)
@report_options
@click.option("--plan-only", is_flag=True, help="Print the plan and send nothing of it.")
@click.option(
    "--authorised",
    is_flag=True,
    help="Say that the target's owner agrees; needed for any but a loopback address.",
)
def command(
    *,
    urls: tuple[str, ...],
    tenants: tuple[str, ...],
    tier: str,
    level: str | None,
    channels: tuple[str, ...],
    flush_command: str | None,
    controls_file: Path | None,
    cache_tier: str | None,
    preset_name: str | None,
    template_file: Path | None,
    routes: tuple[str, ...],
    stream: bool,
    max_rps: float | None,
    max_requests: int | None,
    max_tokens_total: int | None,
    max_cost: float | None,
    price: str | None,
    model: str | None,
    seed: int | None,
    clients: int,
    prompt_tokens: int | None,
    out: Path | None,
    outputs: Outputs,
    plan_only: bool,
    authorised: bool,
) -> int:  # fmt: skip
    """Audit the stack at URL with two or more tenants' keys; several URLs are its replicas.

    Servers that are known are listed under --preset; any other can be described with --template.
    Content is read from logprobs and needs the canary model to be served (`kvward canary-model`);
    usage counters and times are read from any model.
    """
    for url in urls:
        check_address(url)
        _check_authorised(url, authorised=authorised)
    outputs.check()
    controls = _controls(flush_command, controls_file, cache_tier)
    limits = Limits(
        max_rps=max_rps,
        max_requests=max_requests,
        max_tokens_total=max_tokens_total,
        max_cost=max_cost,
        price=None if price is None else Price.parse(price),
    )
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = out or Path(f"kvward-audit-{stamp}")
    request = AuditRequest(
        url=urls[0],
        replicas=urls[1:],
        keys=_parse_tenants(tenants, literal=all(is_loopback(url) for url in urls)),
        model=model,
        tier=Tier(tier),
        seed=secrets.randbits(31) if seed is None else seed,
        channels=[Channel(channel) for channel in channels] or None,
        cache_tier=CacheTier.DEVICE if cache_tier is None else CacheTier(cache_tier),
        controls=controls,
        preset=_preset(preset_name, template_file),
        routes=[Route(route) for route in routes] or None,
        stream=stream,
        limits=limits,
        declared_level=None if level is None else SharingLevel(level),
        clients=clients,
        prompt_tokens=prompt_tokens,
        title=f"Audit of {' and '.join(urls)}",
    )
    result = audit_with_progress(request, folder=folder, plan_only=plan_only)
    if result is None:
        return ExitCode.NOT_OBSERVED
    report, _ = result
    heading = f"Cache isolation at {' and '.join(urls)}"
    outputs.write(report, folder=folder, heading=heading)
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

    at_most = ""

    def on_spend(spend: Spend) -> None:
        nonlocal at_most
        tokens = spend.prompt_tokens + spend.completion_tokens
        cost = "" if spend.cost is None else f", {spend.cost:.2f} USD"
        at_most = f"  at most   {tokens} tokens on this server{cost}"

    def on_plan(plan: Plan) -> bool:
        click.echo(f"{render_plan(plan)}\n{at_most}", err=True)
        bar.length = plan.num_requests
        return not plan_only

    def on_progress(progress: Progress) -> None:
        nonlocal sent
        sent = True
        bar.label = f"{progress.phase:19}"
        bar.length = progress.planned
        bar.update(1)

    running = run_audit(
        request, folder=folder, on_plan=on_plan, on_progress=on_progress, on_spend=on_spend
    )
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


def _controls(command: str | None, file: Path | None, cache_tier: str | None) -> Controls:
    """Return the operator's controls, checked against the tier that they are needed for."""
    if command is not None and file is not None:
        raise ConfigError(
            "--flush-device and --controls say the same.",
            hint="Put the command under [flush-device] into the file.",
        )
    if command is not None and cache_tier is None:
        raise ConfigError(
            "--flush-device and --cache-tier belong together.",
            hint="For example --flush-device 'systemctl restart engine' --cache-tier disk",
        )
    controls = Controls({})
    if command is not None:
        controls = flush_controls(command)
    elif file is not None:
        controls = load_controls(file)
    if cache_tier is not None and Control.FLUSH_DEVICE not in controls:
        raise ConfigError(
            "--cache-tier needs a control that empties the engine's own memory.",
            hint="Give --flush-device COMMAND, or --controls with a section [flush-device].",
        )
    return controls


def _preset(name: str | None, template: Path | None) -> Preset | None:
    if name is not None and template is not None:
        raise ConfigError("--preset and --template say the same.", hint="Give one of them.")
    if template is not None:
        return load_template(template)
    return None if name is None else PRESETS[name]


def _parse_tenants(texts: tuple[str, ...], *, literal: bool) -> dict[str, str]:
    """Return the key of each tenant. [secret]

    Args:
        literal: Whether keys may be written down, where every user of the machine can read them.
    """
    keys: dict[str, str] = {}
    for text in texts:
        name, separator, key = text.partition("=")
        if not separator or not name or not key:
            # The text may hold a key, so it is not repeated.
            raise ConfigError(
                "A --tenant is not written as NAME=KEY.", hint="For example --tenant a=env:KEY_A"
            )
        if not literal and not is_in_environment(key):
            raise ConfigError(
                f"The key of tenant {name} is written on the command line, where others on this "
                "machine can read it.",
                hint=f"Put it into a variable and give --tenant {name}=env:VARIABLE",
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
    if not is_loopback(url) and not authorised:
        host = urlsplit(url).hostname
        raise ConfigError(
            f"{host} is not this machine, and an audit is a load test.",
            hint="If its owner agrees, say so with --authorised.",
        )
