"""The plan, a bar, and what was spent, on standard error while an audit runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from kvward.audit.plan import Plan
from kvward.audit.recorder import Progress
from kvward.audit.report.text import render_plan
from kvward.audit.target import Spend
from kvward.cli.auditing import HISTORY_NAME, Watch

_T = TypeVar("_T")


def run_with_progress(
    start: Callable[[Watch], Coroutine[Any, Any, _T]],
    *,
    folder: Path,
    plan_only: bool,
    before: Callable[[Plan], object] = lambda _: None,
) -> _T:
    """Run an audit with its plan and a progress bar on standard error.

    Args:
        start: Begins the audit; is given who watches it.
        folder: Where it writes its history.
        before: Called with the plan right before its first request; what it raises ends there.
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
        if not plan_only:
            before(plan)
        return not plan_only

    def on_progress(progress: Progress) -> None:
        nonlocal sent
        sent = True
        bar.label = f"{progress.phase:19}"
        bar.length = progress.planned
        bar.update(1)

    try:
        return asyncio.run(
            start(Watch(on_plan=on_plan, on_progress=on_progress, on_spend=on_spend))
        )
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
