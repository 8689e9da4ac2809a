"""What a server tells of its cache: vLLM's Prometheus text, or counters as a JSON object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import msgspec

_SAMPLE = re.compile(
    r"^(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)(?:\s+\d+)?$"
)
_NAMES = {
    "kv_usage_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions", "preemptions"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What one reading says; None for what the server does not offer.

    `is_counters_only` tells of a server that counts events and has no gauges at all.
    """

    kv_usage_ratio: float | None
    running: float | None
    waiting: float | None
    preemptions: float | None
    is_counters_only: bool

    @property
    def is_idle(self) -> bool:
        """Tell whether no request runs or waits and no block is held."""
        return not (self.running or self.waiting or self.kv_usage_ratio)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return asdict(self)


def parse_unverified_metrics(body: bytes) -> EngineState | None:
    """Read a server's metrics; None when it is neither of the two kinds. [untrusted]"""
    text = body.decode("utf-8", "replace")
    is_json = text.lstrip().startswith("{")
    values = _parse_counters(body) if is_json else _parse_prometheus(text)
    if values is None:
        return None
    found = {
        field: next((values[name] for name in names if name in values), None)
        for field, names in _NAMES.items()
    }
    if is_json and found["preemptions"] is None:
        found["preemptions"] = 0.0  # a counter that was never raised is not listed
    return EngineState(**found, is_counters_only=is_json)


def _parse_counters(body: bytes) -> dict[str, float] | None:
    try:
        return {**msgspec.json.decode(body, type=dict[str, float])}
    except msgspec.MsgspecError:
        return None


def _parse_prometheus(text: str) -> Mapping[str, float] | None:
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        values[match["name"]] = values.get(match["name"], 0.0) + value
    return values or None
