"""Which settings of a vLLM command line defeat isolation, and what mends them.

Pure: reads text, starts nothing, opens nothing, needs no vLLM. What is true of vLLM here was read
in the source of one version, and that version is named in every answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvward.adapters.vllm.doctor.command_line import (
    CommandLine,
    parse_unverified_command_line,
)
from kvward.adapters.vllm.doctor.environment import Environment, of_vllm, parse_assignments
from kvward.adapters.vllm.doctor.finding import Finding, Severity
from kvward.adapters.vllm.doctor.names import VLLM_VERSION
from kvward.adapters.vllm.doctor.rules import RULES
from kvward.adapters.vllm.doctor.setup import Setup

__all__ = [
    "VLLM_VERSION",
    "CommandLine",
    "Finding",
    "Severity",
    "check_settings",
    "of_vllm",
    "parse_assignments",
    "parse_unverified_command_line",
]

_ORDER = {severity: place for place, severity in enumerate(Severity)}


def check_settings(
    command_line: CommandLine, *, environment: Mapping[str, str], behind_gateway: bool
) -> list[Finding]:
    """Judge the settings of one engine.

    What is not given is taken at the default of that version. An empty list says that no rule
    matched, and nothing about what no rule looks at.

    Args:
        environment: Variables the engine would run with; those in front of the command win.
        behind_gateway: Whether the operator says that every request comes through the gateway.
    Returns:
        Findings, those that defeat isolation first.
    """
    setup = Setup(
        command_line=command_line,
        environment=Environment({**environment, **command_line.environment}),
        behind_gateway=behind_gateway,
    )
    findings = [finding for rule in RULES for finding in rule(setup)]
    return sorted(dict.fromkeys(findings), key=lambda finding: _ORDER[finding.severity])
