"""The rules, by what they look at. Each is a pure function from a setup to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvward.adapters.vllm.doctor.finding import Finding
from kvward.adapters.vllm.doctor.rules import (
    connector,
    edge,
    engine,
    events,
    options,
    policy,
    unclear,
)
from kvward.adapters.vllm.doctor.setup import Setup

__all__ = ["RULES"]

RULES: tuple[Callable[[Setup], Iterable[Finding]], ...] = (
    unclear.find,
    edge.find,
    engine.find,
    connector.find,
    events.find,
    options.find,
    policy.find,
)
