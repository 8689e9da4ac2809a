"""KV events: token ids, salts and session ids of every block, published on a socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvward.adapters.vllm.doctor.finding import Finding, Severity, not_understood
from kvward.adapters.vllm.doctor.setup import Reach, Setup, is_truth, reach_of_endpoint

_KEYS = frozenset(
    {
        "buffer_steps",
        "enable_kv_cache_events",
        "endpoint",
        "hwm",
        "max_queue_size",
        "publisher",
        "replay_endpoint",
        "topic",
    }
)
_DEFAULT_ENDPOINT = "tcp://*:5557"
_MEND = "Leave events off, or give them an ipc:// endpoint in a folder of the router's user."


def find(setup: Setup) -> Iterator[Finding]:
    """Judge where KV events go."""
    config = setup.command_line.objects.get("kv-events-config")
    if config is None:
        return
    for key in sorted(config.keys() - _KEYS):
        yield not_understood(
            f"--kv-events-config {key}", "vLLM 0.32.0 has no such setting of events."
        )
    publisher = config.get("publisher")
    enabled = is_truth(config, "enable_kv_cache_events")
    if publisher is None:
        publisher = "zmq" if enabled else "null"
    if publisher == "null":
        return
    if publisher != "zmq":
        yield not_understood(f"--kv-events-config publisher={publisher}", "It was not examined.")
        return
    for key in ("endpoint", "replay_endpoint"):
        yield from _endpoint(config, key)


def _endpoint(config: Mapping[str, Any], key: str) -> Iterator[Finding]:
    endpoint = config.get(key) or (_DEFAULT_ENDPOINT if key == "endpoint" else None)
    if endpoint is None:
        return
    reach = reach_of_endpoint(str(endpoint))
    yield Finding(
        id="kv-events",
        severity=Severity.DEFEATS if reach is Reach.NETWORK else Severity.WEAKENS,
        setting=f"--kv-events-config {key}={endpoint}",
        why=f"Token ids, salts and session ids of every tenant can be read {reach.value}, without "
        "a key.",
        mend=_MEND,
    )
