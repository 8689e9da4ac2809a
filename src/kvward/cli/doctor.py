"""`kvward doctor`: which settings of an engine defeat isolation, and what is installed here."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata

import click

from kvward import __version__
from kvward.adapters.vllm.doctor import (
    VLLM_VERSION,
    Finding,
    Severity,
    check_settings,
    of_vllm,
    parse_assignments,
    parse_unverified_command_line,
)
from kvward.errors import UsageError
from kvward.terms import ExitCode

_OPTION = "--vllm"
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^\]]*)\])?.*?;\s*extra\s*==\s*['\"](?P<extra>[^'\"]+)"
)


class _Doctor(click.Command):
    """A command whose option may be followed by -- and arguments that another shell word split."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Make one word of everything after `--vllm --`."""
        for place, word in enumerate(args[:-1]):
            if word == _OPTION and args[place + 1] == "--":
                args = [*args[:place], _OPTION, shlex.join(args[place + 2 :])]
                break
        return super().parse_args(ctx, args)


@click.command("doctor", cls=_Doctor)
@click.option(
    _OPTION,
    "command_line",
    metavar="ARGS",
    help="Judge this vLLM command line: one quoted word, or -- and the arguments, which come last.",
)
@click.option(
    "--env",
    "assignments",
    metavar="NAME=VALUE",
    multiple=True,
    help="A variable the engine will run with. Repeatable.",
)
@click.option("--this-environment", is_flag=True, help="Take vLLM's variables from this process.")
@click.option(
    "--behind-gateway",
    is_flag=True,
    help="Every request will come through `kvward serve`, and nothing else reaches the engine.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def command(
    *,
    command_line: str | None,
    assignments: tuple[str, ...],
    this_environment: bool,
    behind_gateway: bool,
    as_json: bool,
) -> int:
    """Which settings of a vLLM command line defeat isolation between tenants, and what mends them.

    \b
    kvward doctor --behind-gateway --vllm "vllm serve MODEL --uds /run/ward/engine.sock"
    kvward doctor --behind-gateway --vllm -- MODEL --uds /run/ward/engine.sock

    Nothing is started, and no file is opened. Without --vllm: versions, and which optional parts
    are installed.

    Exit codes: 0 nothing found, 1 something defeats isolation, 2 something weakens it or is not
    understood, 3 usage.
    """
    if command_line is None:
        if assignments or this_environment or behind_gateway:
            raise UsageError("There is nothing to judge.", hint='Add --vllm "ARGS".')
        _show_installed(as_json=as_json)
        return ExitCode.NOT_OBSERVED
    environment = of_vllm(os.environ) if this_environment else {}
    findings = check_settings(
        parse_unverified_command_line(command_line),
        environment={**environment, **parse_assignments(assignments)},
        behind_gateway=behind_gateway,
    )
    if as_json:
        value = {"vllm": VLLM_VERSION, "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(value, indent=2))
    else:
        click.echo("\n".join(_render(findings)))
    return _exit_code(findings)


def _exit_code(findings: list[Finding]) -> ExitCode:
    if any(finding.severity is Severity.DEFEATS for finding in findings):
        return ExitCode.VIOLATED
    return ExitCode.INCONCLUSIVE if findings else ExitCode.NOT_OBSERVED


def _render(findings: list[Finding]) -> Iterator[str]:
    width = max((len(finding.id) for finding in findings), default=0)
    for finding in findings:
        yield f"{finding.severity.value:8} {finding.id:{width}}  {finding.setting}"
        yield f"{'':9}Why:  {finding.why}"
        yield f"{'':9}Mend: {finding.mend}"
        yield ""
    counts = dict.fromkeys(Severity, 0)
    for finding in findings:
        counts[finding.severity] += 1
    if findings:
        yield "Findings: " + ", ".join(f"{count} {severity}" for severity, count in counts.items())
    else:
        yield "No rule matched. That is no audit: see `kvward audit`."
    yield f"Judged as vLLM {VLLM_VERSION}; what is not given was taken at its default."


def _show_installed(*, as_json: bool) -> None:
    extras = _missing_of_extras()
    versions = {
        "kvward": __version__,
        "python": platform.python_version(),
        "cryptography": _version("cryptography"),
    }
    if as_json:
        click.echo(json.dumps({"versions": versions, "missing": extras}, indent=2))
        return
    for name, version in versions.items():
        click.echo(f"{name:14} {version or 'not installed'}")
    for extra, missing in extras.items():
        said = f"lacks {', '.join(missing)}" if missing else "installed"
        click.echo(f"kvward[{extra}]".ljust(18) + said)
    if not extras:
        click.echo("kvward is not installed as a package, so its optional parts are not known.")


def _missing_of_extras() -> dict[str, list[str]]:
    """Return what every extra lacks, from the metadata of installed packages alone."""
    needs: dict[str, set[str]] = {}
    includes: dict[str, set[str]] = {}
    try:
        requirements = metadata.requires("kvward") or []
    except metadata.PackageNotFoundError:
        return {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            continue
        extra = match["extra"]
        needs.setdefault(extra, set())
        if match["name"] == "kvward":
            includes[extra] = {name.strip() for name in (match["extras"] or "").split(",")}
        else:
            needs[extra].add(match["name"])
    for extra, others in includes.items():
        needs[extra] |= {name for other in others for name in needs.get(other, ())}
    return {
        extra: sorted(name for name in names if _version(name) is None)
        for extra, names in sorted(needs.items())
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
