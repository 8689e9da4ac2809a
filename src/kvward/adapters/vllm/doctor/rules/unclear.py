"""What is not understood is said, and never passed over."""

from __future__ import annotations

from collections.abc import Iterator

from kvward.adapters.vllm.doctor.finding import Finding, Severity, not_understood
from kvward.adapters.vllm.doctor.setup import Setup


def find(setup: Setup) -> Iterator[Finding]:
    """Give everything of command line and environment that is not understood."""
    for part in setup.command_line.unclear:
        yield not_understood(part.setting, part.why)
    for name, why in setup.environment.unclear():
        yield not_understood(name, why)
    if "config" in setup.command_line.values:
        yield Finding(
            id="settings-in-a-file",
            severity=Severity.UNKNOWN,
            setting=setup.command_line.shown("config"),
            why="The settings in this file are not read here, and with --config=FILE vLLM 0.32.0 "
            "does not read them either.",
            mend="Give the settings of the file as options, and leave the file away.",
        )
