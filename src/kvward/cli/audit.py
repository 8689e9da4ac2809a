"""`kvward audit URL`: look for state that crosses from one tenant to another."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvward.audit.history import Trial
from kvward.audit.plan import MAX_LIFETIME_S, Elicitation, Plan, Route, Tier
from kvward.audit.report import AuditReport
from kvward.audit.target import PRESETS, Limits, Price
from kvward.cli.auditing import AuditRequest, run_audit
from kvward.cli.credential import check_address, is_loopback
from kvward.cli.flooding import FLOOD_TOKENS, PROTECTED_TOKENS
from kvward.cli.gateway import LEVELS
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
from kvward.terms import CacheTier, Channel, ExitCode, Outcome, SharingLevel

if TYPE_CHECKING:
    from kvward.cli.recording import AuditLedger

EXIT_CODES = {
    Outcome.NOT_OBSERVED: ExitCode.NOT_OBSERVED,
    Outcome.VIOLATED: ExitCode.VIOLATED,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


ELICITATIONS = {None: None, True: Elicitation.LOGPROBS, False: Elicitation.TEXT}


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
@MAX_RPS
@MAX_REQUESTS
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
@click.option(
    "--other-model",
    default="",
    metavar="NAME",
    help="Another model or adapter of the same server: what one of them computed may not be "
    "reused for the other.",
)
@click.option(
    "--salt-tenants",
    is_flag=True,
    help="Send a cache salt for each tenant, as a gateway would: for an engine that tells tenants "
    "by nothing else.",
)
@click.option(
    "--pictures",
    is_flag=True,
    help="The model takes pictures: state of one may not be reused for another.",
)
@click.option(
    "--lifetime",
    "lifetime_s",
    type=click.FloatRange(min=0, max=MAX_LIFETIME_S),
    default=0.0,
    metavar="SECONDS",
    help="The stack promises to reuse nothing that is older: this is waited for, once.",
)
@click.option(
    "--canary-model/--no-canary-model",
    "canary_model",
    default=None,
    help="The target serves the canary model (`kvward canary-model`), whose logprobs show every "
    "word; else content is read from what is printed. By default its name decides: canary….",
)
@click.option("--seed", type=click.IntRange(min=0), help="Repeats an audit; random by default.")
@click.option("--clients", type=click.IntRange(1, 256), default=16, show_default=True)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(64, 100_000),
    help="Length of the prompts whose times are compared; 512 by default, or more where a "
    "server caches long prompts only.",
)
@PROTECTED_TOKENS
@FLOOD_TOKENS
@click.option(
    "--ledger",
    "ledger_folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of a log (`kvward ledger init`): takes the plan before the first request, and "
    "the verdicts at the end.",
)
@click.option(
    "--ledger-key",
    "ledger_key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Signing key of the log; DIR.key, beside its folder, if not given.",
)
@OUT
@report_options
@PLAN_ONLY
@AUTHORISED
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
    other_model: str,
    canary_model: bool | None,
    lifetime_s: float,
    salt_tenants: bool,
    pictures: bool,
    seed: int | None,
    clients: int,
    prompt_tokens: int | None,
    protected_tokens: int | None,
    flood_tokens: int | None,
    ledger_folder: Path | None,
    ledger_key: Path | None,
    out: Path | None,
    outputs: Outputs,
    plan_only: bool,
    authorised: bool,
) -> int:  # fmt: skip
    """Audit the stack at URL with two or more tenants' keys; several URLs are its replicas.

    Servers that are known are listed under --preset; any other can be described with --template.
    Content is read from logprobs where the canary model is served (`kvward canary-model`), else
    from what is printed; usage counters and times are read from any model.
    """
    for url in urls:
        check_address(url)
        check_authorised(url, authorised=authorised)
    outputs.check()
    controls = choose_controls(flush_command, controls_file, cache_tier)
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
        keys=parse_tenants(tenants, literal=all(is_loopback(url) for url in urls)),
        model=model,
        tier=Tier(tier),
        seed=secrets.randbits(31) if seed is None else seed,
        channels=[Channel(channel) for channel in channels] or None,
        cache_tier=CacheTier.DEVICE if cache_tier is None else CacheTier(cache_tier),
        controls=controls,
        preset=choose_preset(preset_name, template_file),
        routes=[Route(route) for route in routes] or None,
        stream=stream,
        limits=limits,
        declared_level=None if level is None else SharingLevel(level),
        clients=clients,
        prompt_tokens=prompt_tokens,
        other_model=other_model,
        elicitation=ELICITATIONS[canary_model],
        lifetime_s=lifetime_s,
        salted=salt_tenants,
        pictures=pictures,
        protected_tokens=protected_tokens,
        flood_tokens=flood_tokens,
        title=f"Audit of {' and '.join(urls)}",
    )
    ledger = None if ledger_folder is None else _open_ledger(ledger_folder, ledger_key)

    def publish(plan: Plan) -> None:
        if ledger is not None:
            ledger.publish_plan(plan.to_json(), seed_was_given=seed is not None)

    result = audit_with_progress(request, folder=folder, plan_only=plan_only, before=publish)
    if result is None:
        return ExitCode.NOT_OBSERVED
    report, _ = result
    heading = f"Cache isolation at {' and '.join(urls)}"
    outputs.write(report, folder=folder, heading=heading)
    if ledger is not None:
        checkpoint = ledger.record(folder)
        click.echo(f"{checkpoint.origin} has {checkpoint.size} entries.", err=True)
    return EXIT_CODES[report.outcome]


def _open_ledger(folder: Path, key_file: Path | None) -> AuditLedger:
    from kvward.cli.recording import AuditLedger

    return AuditLedger(folder, key_file=key_file, contract_digest=None)


def audit_with_progress(
    request: AuditRequest,
    *,
    folder: Path,
    plan_only: bool = False,
    before: Callable[[Plan], object] = lambda _: None,
) -> tuple[AuditReport, list[Trial]] | None:
    """Run an audit with its plan and a progress bar on standard error.

    Args:
        before: Called with the plan right before its first request.
    Raises:
        KeyboardInterrupt: after saying where the part of the history is that there is.
    """
    return run_with_progress(
        lambda watch: run_audit(request, folder=folder, watch=watch),
        folder=folder,
        plan_only=plan_only,
        before=before,
    )
