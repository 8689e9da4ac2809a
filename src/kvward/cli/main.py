"""Entry point: find the command, run it, turn what went wrong into a message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from kvward import __version__
from kvward.cli.lazy import LazyGroup
from kvward.errors import (
    AuditError,
    BackendUnavailableError,
    BudgetExceededError,
    ForkError,
    IsolationError,
    KeyringUnavailableError,
    KvwardError,
    OpenError,
    ReceiptError,
    ReportError,
    TargetRefusedError,
    TargetUnreachableError,
    VerificationError,
)
from kvward.terms import ExitCode

COMMANDS = {
    "audit": ("kvward.cli.audit", "Look for state that crosses from one tenant to another."),
    "canary-model": ("kvward.cli.canary_model", "Write the canary checkpoint to a folder."),
    "contract": ("kvward.cli.contract", "The promise: check and compare what is guaranteed."),
    "demo": ("kvward.cli.demo", "Audit a leaking engine, then the same one behind the ward."),
    "doctor": ("kvward.cli.doctor", "Which settings of vLLM defeat isolation; what is installed."),
    "gateway": ("kvward.cli.gateway", "Prepare the gateway: keys, tenants, configuration."),
    "keys": ("kvward.cli.keys", "The durable keyring: rotate, erase with receipt, collect."),
    "lab": ("kvward.cli.lab", "The laboratory engine: serve it, break it, fetch a model."),
    "ledger": ("kvward.cli.ledger", "The log of evidence: begin, verify, prove, repair, export."),
    "replay": ("kvward.cli.replay", "Send the requests of a report's finding again."),
    "selftest": ("kvward.cli.selftest", "Which planted defects the auditor finds, and which not."),
    "serve": ("kvward.cli.serve", "Run the gateway, in front of an engine or the lab's own."),
    "store": ("kvward.cli.store", "The store of sealed state: statistics, purge, sweep."),
    "verify": ("kvward.cli.verify", "Verify evidence of audits offline; works verdicts out again."),
}

_EXTRAS = {
    "audit": "audit",
    "canary-model": "lab",
    "demo": "demo",
    "lab": "demo",
    "replay": "audit",
    "selftest": "demo",
    "serve": "demo",
    "verify": "audit",
}
"""What a command needs to be installed, where it is not the gateway."""


@click.command(
    cls=LazyGroup,
    lazy=COMMANDS,
    extras=_EXTRAS,
    path="kvward",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="kvward")
def cli() -> None:
    """An isolation ward for LLM KV caches.

    Exit codes: 0 nothing observed within the stated bounds, 1 violated, 2 inconclusive or not
    tested, 3 usage or configuration, 4 evidence does not verify, 5 target unreachable.
    """


def exit_code_of(error: KvwardError) -> ExitCode:
    """Map an error to the exit code of the command that met it."""
    match error:
        case TargetUnreachableError() | BackendUnavailableError() | KeyringUnavailableError():
            return ExitCode.UNREACHABLE
        case TargetRefusedError() | BudgetExceededError():
            return ExitCode.USAGE
        case OpenError() | ReceiptError() | ReportError() | VerificationError() | ForkError():
            return ExitCode.EVIDENCE
        case AuditError() | IsolationError():
            return ExitCode.INCONCLUSIVE
        case _:
            return ExitCode.USAGE


def main() -> NoReturn:
    """Run the command line and exit."""
    # Before numpy is imported, and inherited by servers that we start. Threads of one product that
    # wait for each other on busy cores made an audit fifteen times slower than one thread does.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as exc:
        exc.show(sys.stderr)
        sys.exit(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(ExitCode.INCONCLUSIVE)
    except KvwardError as exc:
        click.echo(f"{exc.message} [{exc.code}]", err=True)
        if exc.hint:
            click.echo(f"Next: {exc.hint}", err=True)
        sys.exit(exit_code_of(exc))
    sys.exit(code if isinstance(code, int) else 0)
