"""Connectors: what takes state out of the engine, and under which name it comes back.

Read in the source of vLLM 0.32.0; where a connector's keys are made elsewhere, in LMCache 0.5.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvward.adapters.vllm.doctor.finding import Finding, Severity, not_understood
from kvward.adapters.vllm.doctor.setup import (
    WARD_CONNECTOR,
    WARD_CONNECTOR_MODULE,
    Reach,
    Setup,
    reach_of_host,
)

_KEYS = frozenset(
    {
        "enable_permute_local_kv",
        "engine_id",
        "kv_buffer_device",
        "kv_connector",
        "kv_connector_extra_config",
        "kv_connector_module_path",
        "kv_load_failure_policy",
        "kv_port",
        "kv_role",
    }
)
_MEND = f"Use {WARD_CONNECTOR} from {WARD_CONNECTOR_MODULE}, or no connector."
_SIDE_CHANNELS = (
    "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "VLLM_P2P_SIDE_CHANNEL_HOST",
    "VLLM_EC_SIDE_CHANNEL_HOST",
)


class _Known(NamedTuple):
    severity: Severity
    why: str


_NO_SALT = Severity.DEFEATS
_BY_BLOCK_HASH = _Known(
    Severity.WEAKENS,
    "It names state by the engine's block hash, so the salt counts, but what it keeps outside the "
    "engine is neither encrypted nor authenticated, and erasing a tenant does not reach it.",
)
_BY_REQUEST = (
    "It fetches what the request names in kv_transfer_params (an engine, and blocks or a transfer) "
    "and nothing ties that to a scope."
)
_KNOWN: dict[str, _Known] = {
    "ExampleConnector": _Known(
        _NO_SALT, "It names files by token ids and media only: no salt, adapter or model."
    ),
    "HF3FSKVConnector": _Known(_NO_SALT, "It names state by MD5 of token ids only, no salt."),
    "LMCacheConnectorV1": _Known(
        _NO_SALT,
        "Its keys hold no salt (LMCache 0.5.6), and a caller may add tags to them.",
    ),
    "LMCacheMPConnector": _Known(
        Severity.WEAKENS,
        "It passes the salt on, in clear beside an unsalted hash, and the server accepts entries "
        "of one tenant that were swapped (LMCache 0.5.6).",
    ),
    "OffloadingConnector": _BY_BLOCK_HASH,
    "SimpleCPUOffloadConnector": _BY_BLOCK_HASH,
    "MooncakeStoreConnector": _BY_BLOCK_HASH,
    "ExampleHiddenStatesConnector": _Known(
        Severity.WEAKENS, "It writes token ids and hidden states of requests to plain files."
    ),
    "FlexKVConnectorV1": _Known(
        Severity.UNKNOWN, "Its keys are made in another package, which was not examined."
    ),
    "HiSparseConnector": _Known(
        Severity.UNKNOWN, "It keeps a second copy of state in host memory, and was not tested."
    ),
    "DecodeBenchConnector": _Known(
        Severity.UNKNOWN, "It fills blocks with made-up state, and is for benchmarks."
    ),
}
_BETWEEN_ENGINES = frozenset(
    {
        "MooncakeConnector",
        "MoRIIOConnector",
        "NixlConnector",
        "NixlPullConnector",
        "NixlPushConnector",
    }
)


def find(setup: Setup) -> Iterator[Finding]:
    """Judge connectors of KV state and of encoder outputs, and native offload."""
    config = setup.command_line.objects.get("kv-transfer-config", {})
    for key in sorted(config.keys() - _KEYS):
        yield not_understood(
            f"--kv-transfer-config {key}", "vLLM 0.32.0 has no such setting of connectors."
        )
    yield from _offload(setup, config)
    for part in _parts(config):
        yield from _connector(setup, part)
    yield from _failure_policy(config)
    yield from _encoder_outputs(setup)
    for name in _SIDE_CHANNELS:
        host = setup.environment.text(name)
        if host is not None and reach_of_host(host) is Reach.NETWORK:
            yield _finding(
                "side-channel",
                Severity.WEAKENS,
                setup.environment.shown(name),
                "Other machines reach a control socket that asks for no key.",
                mend="Leave it on localhost, or in a network of the engines alone.",
            )


def _offload(setup: Setup, config: Mapping[str, Any]) -> Iterator[Finding]:
    line = setup.command_line
    if line.value("kv-offloading-size") is None:
        return
    backend = line.value("kv-offloading-backend") or "native"
    if backend == "native":
        simple = setup.environment.is_on("VLLM_USE_SIMPLE_KV_OFFLOAD")
        name = "SimpleCPUOffloadConnector" if simple else "OffloadingConnector"
    elif backend == "lmcache":
        name = "LMCacheMPConnector"
    else:
        yield not_understood(
            line.shown("kv-offloading-backend"), "vLLM 0.32.0 has the backends native and lmcache."
        )
        return
    known = _KNOWN[name]
    shown = f"{line.shown('kv-offloading-size')} ({backend})"
    yield _finding("offload", known.severity, shown, known.why)
    if config.get("kv_connector") is not None:
        yield _finding(
            "offload-replaces-connector",
            Severity.DEFEATS,
            f"{shown} beside --kv-transfer-config",
            f"The offload puts {name} in the place of the connector that was named.",
            mend="Leave --kv-offloading-size away.",
        )


def connectors(setup: Setup) -> Iterator[Mapping[str, Any]]:
    """Give the settings of every connector that is named."""
    yield from _parts(setup.command_line.objects.get("kv-transfer-config", {}))


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Give every connector: one, or those inside a MultiConnector."""
    waiting: list[Any] = [config]
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, Mapping):
            yield {"kv_connector": "?"}
        elif part.get("kv_connector") != "MultiConnector":
            yield part
        else:
            extra = part.get("kv_connector_extra_config")
            children = extra.get("connectors") if isinstance(extra, Mapping) else None
            waiting += children if isinstance(children, list) and children else [None]


def _connector(setup: Setup, part: Mapping[str, Any]) -> Iterator[Finding]:
    name, module = part.get("kv_connector"), part.get("kv_connector_module_path")
    if name is None:
        return
    name = str(name)
    shown = f"--kv-transfer-config kv_connector={name}"
    if module is not None:
        if (name, module) != (WARD_CONNECTOR, WARD_CONNECTOR_MODULE):
            yield _finding(
                "connector",
                Severity.UNKNOWN,
                f"{shown} of {module}",
                "A connector from elsewhere was not examined.",
            )
    elif name in _BETWEEN_ENGINES:
        yield _finding(
            "connector",
            setup.severity(bare=Severity.DEFEATS, guarded=Severity.UNKNOWN),
            shown,
            _BY_REQUEST
            if not setup.is_guarded
            else _BY_REQUEST[:-1] + "; the gateway drops that field, so a router behind it must "
            "write it, which was not tested.",
        )
    elif name in _KNOWN:
        known = _KNOWN[name]
        yield _finding("connector", known.severity, shown, known.why)
    elif name == WARD_CONNECTOR:
        yield _finding(
            "connector",
            Severity.UNKNOWN,
            f"{shown} without kv_connector_module_path",
            "vLLM does not know where to find it.",
            mend=f"Set kv_connector_module_path to {WARD_CONNECTOR_MODULE}.",
        )
    else:
        yield _finding(
            "connector", Severity.UNKNOWN, shown, "vLLM 0.32.0 has no connector of this name."
        )


def _failure_policy(config: Mapping[str, Any]) -> Iterator[Finding]:
    names = {part.get("kv_connector") for part in _parts(config) if _is_name(part)}
    policy = config.get("kv_load_failure_policy")
    if WARD_CONNECTOR not in names or policy == "recompute":
        return
    yield _finding(
        "load-failure-policy",
        Severity.WEAKENS,
        f"kv_load_failure_policy={policy}" if policy is not None else "no kv_load_failure_policy",
        "The connector refuses to start: a stored block that does not open would end the request "
        "with an error, and a caller could tell what should look like a miss.",
        mend="Set kv_load_failure_policy to recompute in --kv-transfer-config.",
    )


def _is_name(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("kv_connector"), str)


def _encoder_outputs(setup: Setup) -> Iterator[Finding]:
    config = setup.command_line.objects.get("ec-transfer-config", {})
    if config.get("ec_connector") is None:
        return
    yield _finding(
        "encoder-connector",
        Severity.DEFEATS,
        f"--ec-transfer-config ec_connector={config['ec_connector']}",
        "Encoder outputs are named by a media hash that callers may choose, without salt.",
        mend="Leave it away, and add --language-model-only where the model allows.",
    )


def _finding(id_: str, severity: Severity, setting: str, why: str, *, mend: str = _MEND) -> Finding:
    return Finding(id=id_, severity=severity, setting=setting, why=why, mend=mend)
