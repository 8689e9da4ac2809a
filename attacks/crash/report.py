"""What campaigns that kill writers have in common: ending a child, counting, writing it down."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkProcess
from typing import Any

from kvward import __version__


@dataclass(kw_only=True)
class Report:
    """What a campaign did and found."""

    kind: str
    kills: int = 0
    kills_at_points: Counter[str] = field(default_factory=Counter)
    kills_after_a_delay: int = 0
    ended_before_the_kill: int = 0
    found: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    duration_s: float = 0.0

    def end(self, victim: ForkProcess, *, after_s: float) -> None:
        """Wait for a child to be killed at its point, or kill it after a delay; count it."""
        victim.join(timeout=after_s)
        if victim.exitcode is None:
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            self.kills_after_a_delay += 1
        self.kills += victim.exitcode == -signal.SIGKILL

    def to_json(self) -> dict[str, Any]:
        """Return it as it is written down."""
        return {
            name: dict(sorted(value.items())) if isinstance(value, Counter) else value
            for name, value in vars(self).items()
        }


def conclude(what: str, reports: Sequence[Report], arguments: argparse.Namespace) -> int:
    """Print the reports, keep them where `--json` says, and return the exit code.

    Returns:
        1 when there were problems; of bad writers (`--bad`), when one had none.
    """
    result = {
        "what": what,
        "tool_version": __version__,
        "python": platform.python_version(),
        "seed": arguments.seed,
        "targets": [report.to_json() for report in reports],
    }
    text = json.dumps(result, indent=2) + "\n"
    if arguments.json:
        arguments.json.write_text(text)
    sys.stdout.write(text)
    wrong = [bool(report.problems) for report in reports]
    return int(not all(wrong)) if arguments.bad else int(any(wrong))
