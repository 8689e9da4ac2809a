"""The doctor's rules, both ways: what each must find, and what it must stay quiet about."""

from __future__ import annotations

import json
import re
import shlex
from typing import NamedTuple

import pytest

from kvward.adapters.vllm.doctor import (
    Finding,
    Severity,
    check_settings,
    of_vllm,
    parse_assignments,
    parse_unverified_command_line,
)
from kvward.adapters.vllm.doctor.command_line import JSON_OPTIONS, Program
from kvward.adapters.vllm.doctor.names import ALIASES, ENVIRONMENT, OPTIONS
from kvward.adapters.vllm.doctor.rules import options as option_rules
from kvward.errors import UsageError

WARD = "--middleware kvward.gateway.vllm.WardMiddleware"
QUIET = "MODEL --uds /run/ward/engine.sock --language-model-only"
CONNECTOR = {
    "kv_connector": "KvwardConnector",
    "kv_connector_module_path": "kvward.adapters.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}
WHOLE = '\'{"kv_connector": "A"}\''
RECOMMENDED = f"vllm serve {QUIET} --kv-transfer-config {shlex.quote(json.dumps(CONNECTOR))}"


def findings(line: str, *, env: str = "", behind_gateway: bool = True) -> list[Finding]:
    return check_settings(
        parse_unverified_command_line(line),
        environment=parse_assignments(env.split()),
        behind_gateway=behind_gateway,
    )


def found(line: str, *, env: str = "", behind_gateway: bool = True) -> dict[str, Severity]:
    """Return the gravest severity of every rule that matched."""
    graver: dict[str, Severity] = {}
    for finding in findings(line, env=env, behind_gateway=behind_gateway):
        graver.setdefault(finding.id, finding.severity)
    return graver


def transfer(**changes: object) -> str:
    config = {k: v for k, v in {**CONNECTOR, **changes}.items() if v is not None}
    return f"{QUIET} --kv-transfer-config {shlex.quote(json.dumps(config))}"


def stock(name: str, **changes: object) -> str:
    return transfer(kv_connector=name, kv_connector_module_path=None, **changes)


def events(**config: object) -> str:
    return f"{QUIET} --kv-events-config {shlex.quote(json.dumps(config))}"


class Case(NamedTuple):
    """What is found with `line`, and not with `quiet`, by the rule `id`."""

    id: str
    line: str
    quiet: str
    severity: Severity = Severity.WEAKENS
    env: str = ""
    quiet_env: str = ""
    behind_gateway: bool = True


DEFEATS, WEAKENS, UNKNOWN = Severity.DEFEATS, Severity.WEAKENS, Severity.UNKNOWN


def option(id_: str, extra: str, other: str = "", severity: Severity = WEAKENS) -> Case:
    return Case(id_, f"{QUIET} {extra}", f"{QUIET} {other}", severity)


def variable(id_: str, env: str, other: str = "", severity: Severity = WEAKENS) -> Case:
    return Case(id_, QUIET, QUIET, severity, env=env, quiet_env=other)


def bare(id_: str, extra: str, severity: Severity) -> Case:
    """What is found when callers reach the engine, and not behind the gateway."""
    return Case(id_, f"{QUIET} {extra}", QUIET, severity, behind_gateway=False)


CASES = [
    # Who reaches it, and who decides.
    Case("run-batch", "vllm run-batch -i in -o out", f"vllm serve {QUIET}", DEFEATS),
    Case("grpc", f"python -m vllm.entrypoints.grpc_server {QUIET}", QUIET, DEFEATS),
    option("grpc", "--grpc", "", DEFEATS),
    option("grpc", "--grpc-port 9000", "--port 9000", DEFEATS),
    variable("rust-front-end", "VLLM_USE_RUST_FRONTEND=1", "VLLM_USE_RUST_FRONTEND=0", UNKNOWN),
    Case("rust-front-end", f"{QUIET} {WARD}", f"{QUIET} {WARD}", DEFEATS,
         env="VLLM_USE_RUST_FRONTEND=1", behind_gateway=False),
    Case("scope-from-caller", QUIET, f"{QUIET} {WARD}", DEFEATS, behind_gateway=False),
    Case("reachable-by-others", "m", "m --uds s", DEFEATS),
    Case("reachable-by-others", "m --host 0.0.0.0", "m --host 127.0.0.1", DEFEATS),
    Case("reachable-by-others", "m --host :: --api-key k", "m --host ::1", DEFEATS),
    Case("reachable-by-others", "m --host gpu7", "m --host localhost", DEFEATS),
    Case("reachable-by-others", "m --host $HOST", f"m {WARD}", DEFEATS),
    Case("reachable-by-others", "m --uds None", "m --host 127.0.0.2", DEFEATS),
    Case("reachable-on-this-machine", "m --host 127.0.0.1", "m --uds s --host 127.0.0.1"),
    Case("no-api-key", "m", "m --api-key k", DEFEATS),
    Case("no-api-key", "m --host 127.0.0.1", "m --host 127.0.0.1", env="",
         quiet_env="VLLM_API_KEY=k"),
    Case("no-api-key", "m --api-key None", f"m {WARD}", DEFEATS, env="VLLM_API_KEY=k"),
    Case("keys-are-equal", f"{QUIET} --api-key a b", f"{QUIET} {WARD} --api-key a", DEFEATS,
         behind_gateway=False),
    option("several-api-keys", "--api-key a b", "--api-key a"),
    Case("key-in-process-list", "m --host 127.0.0.1 --api-key k", "m --host 127.0.0.1",
         quiet_env="VLLM_API_KEY=k"),
    Case("key-in-process-list", "m --api-key k", f"m --api-key k {WARD}"),
    option("other-middleware", "--middleware a.B", WARD, UNKNOWN),
    option("ward-not-outermost", f"{WARD} --middleware a.B", f"--middleware a.B {WARD}"),
    option("any-origin", "--allowed-origins '[\"*\"]'", "--allowed-origins '[\"https://a\"]'"),
    Case("any-origin", f"{QUIET} --allowed-origins [\\\"*\\\"] --allow-credentials", QUIET, DEFEATS,
         behind_gateway=False),
    # Inside the engine.
    option("prefix-hash", "--prefix-caching-hash-algo xxhash",
           "--prefix-caching-hash-algo sha256", DEFEATS),
    option("prefix-hash", "--prefix_caching_hash_algo=xxhash_cbor",
           "--prefix-caching-hash-algo sha256_cbor", DEFEATS),
    option("not-understood", "--prefix-caching-hash-algo builtin",
           "--prefix-caching-hash-algo sha256", UNKNOWN),
    option("prefix-caching-off", "--no-enable-prefix-caching", "--enable-prefix-caching", UNKNOWN),
    variable("adapters-change", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
             "VLLM_ALLOW_RUNTIME_LORA_UPDATING=0"),
    Case("adapters-change", QUIET, f"{QUIET} --enable-lora --lora-modules a=b", DEFEATS,
         env="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", behind_gateway=False),
    variable("adapters-by-request",
             "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 VLLM_LORA_RESOLVER_CACHE_DIR=/a",
             "VLLM_LORA_RESOLVER_CACHE_DIR=/a"),
    Case("media-shared", "m --uds s", "m --uds s --language-model-only", UNKNOWN),
    Case("media-shared", f"{QUIET} --no-language-model-only", QUIET, UNKNOWN),
    option("suffix-decoding", "--spec-method suffix", "--spec-method ngram", DEFEATS),
    option("suffix-decoding", "-sc '{\"method\": \"suffix\"}'",
           "-sc '{\"method\": \"suffix\", \"suffix_decoding_max_cached_requests\": 0}'", DEFEATS),
    option("speculation", "--spec-model x", "", UNKNOWN),
    option("several-model-names", "--served-model-name a b", "--served-model-name a"),
    variable("any-model-name", "VLLM_SKIP_MODEL_NAME_VALIDATION=1"),
    # Connectors.
    Case("connector", stock("ExampleConnector"), transfer(), DEFEATS),
    Case("connector", stock("HF3FSKVConnector"), transfer(), DEFEATS),
    Case("connector", stock("LMCacheConnectorV1"), transfer(), DEFEATS),
    Case("connector", stock("LMCacheMPConnector"), transfer()),
    Case("connector", stock("OffloadingConnector"), transfer()),
    Case("connector", stock("MooncakeStoreConnector"), transfer()),
    Case("connector", stock("NixlConnector"), transfer(), UNKNOWN),
    Case("connector", f"{stock('NixlConnector')} {WARD}", transfer(), UNKNOWN),
    Case("connector", stock("MooncakeConnector"), transfer(), DEFEATS, behind_gateway=False),
    Case("connector", stock("FlexKVConnectorV1"), transfer(), UNKNOWN),
    Case("connector", stock("SharedStorageConnector"), transfer(), UNKNOWN),
    Case("connector", stock("KvwardConnector"), transfer(), UNKNOWN),
    Case("connector", transfer(kv_connector_module_path="elsewhere"), transfer(), UNKNOWN),
    Case("connector", transfer(kv_connector="Other"), transfer(), UNKNOWN),
    Case("connector", transfer(kv_connector=["x"]), transfer(), UNKNOWN),
    Case("connector", stock("MultiConnector"), transfer(), UNKNOWN),
    Case("connector", stock("MultiConnector", kv_connector_extra_config={"connectors": [
        CONNECTOR, {"kv_connector": "ExampleConnector"}]}),
         stock("MultiConnector", kv_connector_extra_config={"connectors": [CONNECTOR]}), DEFEATS),
    Case("load-failure-policy", transfer(kv_load_failure_policy="fail"), transfer()),
    Case("load-failure-policy", transfer(kv_load_failure_policy=None), QUIET),
    option("offload", "--kv-offloading-size 4", "--kv-offloading-backend native"),
    option("offload", "--kv-offloading-size 4 --kv-offloading-backend lmcache"),
    Case("offload-replaces-connector", f"{transfer()} --kv-offloading-size 4", transfer(), DEFEATS),
    option("encoder-connector", "--ec-transfer-config.ec_connector ECExample", "", DEFEATS),
    variable("side-channel", "VLLM_NIXL_SIDE_CHANNEL_HOST=10.0.0.1",
             "VLLM_NIXL_SIDE_CHANNEL_HOST=localhost"),
    # Events.
    Case("kv-events", events(enable_kv_cache_events=True), events(publisher="null"), DEFEATS),
    Case("kv-events", events(publisher="zmq"), events(topic="x"), DEFEATS),
    Case("kv-events", events(publisher="zmq", endpoint="tcp://10.0.0.1:5557"), QUIET, DEFEATS),
    Case("kv-events", events(publisher="zmq", endpoint="tcp://[::]:5557"), QUIET, DEFEATS),
    Case("kv-events", events(publisher="zmq", endpoint="tcp://127.0.0.1:5557"), QUIET),
    Case("kv-events", events(publisher="zmq", endpoint="ipc:///run/x"), QUIET),
    Case("kv-events", events(publisher="zmq", endpoint="ipc:///x", replay_endpoint="tcp://*:1"),
         events(enable_kv_cache_events="false"), DEFEATS),
    Case("not-understood", events(publisher="kafka"), events(publisher="null"), UNKNOWN),
    Case("not-understood", events(enabled=True), events(hwm=1), UNKNOWN),
    # One row each.
    variable("development-mode", "VLLM_SERVER_DEV_MODE=1", "VLLM_SERVER_DEV_MODE=0"),
    variable("pickled-messages", "VLLM_ALLOW_INSECURE_SERIALIZATION=1"),
    variable("responses-store", "VLLM_ENABLE_RESPONSES_API_STORE=1"),
    variable("routes-without-salt", "VLLM_ENABLE_COHERE_API=1"),
    option("token-routes", "--enable-scale-out", "--no-enable-scale-out"),
    option("token-routes", "--tokens-only"),
    option("operator-routes", "--enable-fault-tolerance"),
    option("weights-change", "--weight-transfer-config '{\"backend\": \"nccl\"}'"),
    variable("request-ids", "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1"),
    bare("request-id-headers", "--enable-request-id-headers", WEAKENS),
    bare("cached-token-counts", "--enable-prompt-tokens-details", WEAKENS),
    bare("load-route", "--enable-server-load-tracking", WEAKENS),
    bare("priorities", "--scheduling-policy priority", WEAKENS),
    option("request-times", "--enable-per-request-metrics"),
    option("remote-code", "--trust-remote-code", "--trust-remote-code --no-trust-remote-code"),
    option("foreign-code", "--scheduler-cls a.B", "--worker-cls auto", UNKNOWN),
    option("tool-server", "--tool-server demo", "", UNKNOWN),
    option("embeddings-as-prompt", "--enable-prompt-embeds"),
    option("template-from-caller", "--trust-request-chat-template"),
    option("trace-replay", "--enable-trace-replay"),
    option("local-media", "--allowed-local-media-path /"),
    variable("media-on-disk", "VLLM_MEDIA_CACHE=/tmp/media", "VLLM_MEDIA_CACHE="),
    option("requests-logged", "--enable-log-requests", "--max-log-len 0"),
    option("answers-logged", "--enable-log-requests --enable-log-outputs"),
    variable("answers-logged", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE=true"),
    option("traces", "--otlp-traces-endpoint http://user:pass@host"),
    option("log-settings-in-a-file", "--log-config-file x", "--log-level INFO", UNKNOWN),
    option("log-settings-in-a-file", "--logging-config.pylogging_config_file x",
           "--logging-config.formatter json", UNKNOWN),
    option("speculation-counts", "--per-request-spec-decode-metrics summary",
           "--per-request-spec-decode-metrics none"),
    option("external-routing", "-dpe", "-dp 2", UNKNOWN),
    option("external-routing", "--data-parallel-rank 0", "--data-parallel-size 2", UNKNOWN),
    option("debug-log", "--log-level DEBUG", "--log-level INFO"),
    option("debug-log", "--logging-config.log_level DEBUG"),
    variable("debug-log", "VLLM_LOGGING_LEVEL=debug", "VLLM_LOGGING_LEVEL=warning"),
    option("profiler", "--profiler-config.profiler torch", "--profiler-config.delay_iterations 1"),
    option("engine-network", "--data-parallel-address 10.0.0.1",
           "--data-parallel-address 127.0.0.1"),
    # What would stop the engine's start.
    Case("policy-not-named", transfer(), transfer(), UNKNOWN, quiet_env="KVWARD_POLICY=p"),
    Case("policy-not-named", transfer(), f"KVWARD_POLICY=p vllm serve {transfer()}", UNKNOWN),
    Case("policy-not-named", transfer(kv_connector_extra_config={"load_s": 2}),
         transfer(kv_connector_extra_config={"policy": "p"}), UNKNOWN),
    Case("policy-not-named", f"{QUIET} {WARD}", QUIET, UNKNOWN, behind_gateway=False),
    # What is not understood, or not read.
    option("settings-in-a-file", "--config c.yaml", "", UNKNOWN),
    option("settings-in-a-file", "--config=c.yaml", "", UNKNOWN),
    option("not-understood", "--omni", "--seed 1", UNKNOWN),
    variable("not-understood", "VLLM_SERVER_DEVMODE=1", "HF_HUB_OFFLINE=1", UNKNOWN),
    variable("not-understood", "VLLM_SERVER_DEV_MODE=yes", "VLLM_SERVER_DEV_MODE=0", UNKNOWN),
    Case("not-understood", transfer(kv_rank=1), transfer(kv_port=1), UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rule_finds_what_it_must_and_nothing_else(case: Case) -> None:
    loud = found(case.line, env=case.env, behind_gateway=case.behind_gateway)
    assert loud.get(case.id) is case.severity
    quiet = found(case.quiet, env=case.quiet_env)
    assert case.id not in quiet


def test_every_row_of_the_table_has_a_case() -> None:
    rows = {row.id for row in option_rules._ROWS}
    assert rows <= {case.id for case in CASES}


@pytest.mark.parametrize("row", option_rules._ROWS, ids=lambda row: row.id)
def test_every_row_names_what_exists_and_fires_for_each_name(row: option_rules._Row) -> None:
    for name in row.names:
        if name.isupper():
            assert name in ENVIRONMENT
            got = found(QUIET, env=f"{name}=1", behind_gateway=False)
        else:
            shape = OPTIONS[name].name
            value = "" if shape in {"FLAG", "SWITCH"} else " {}"
            got = found(f"{QUIET} --{name}{value}", behind_gateway=False)
        assert got.get(row.id) is row.bare


@pytest.mark.parametrize("line", [RECOMMENDED, QUIET, RECOMMENDED.removeprefix("vllm serve ")])
def test_recommended_command_line_has_no_finding(line: str) -> None:
    env = "KVWARD_POLICY=gate/policy.toml"
    assert findings(line, env=env) == []
    assert findings(f"{line} {WARD}", env=env, behind_gateway=False) == []
    ordinary = (
        "--dtype float32 -tp 2 --max-model-len 4k --port 1 -O3 --enable-prompt-tokens-details"
    )
    assert findings(f"{line} {ordinary} --block-size=128 --no-async-scheduling", env=env) == []


@pytest.mark.parametrize("severity", list(Severity))
def test_findings_are_ordered_by_severity(severity: Severity) -> None:
    severities = [f.severity for f in findings("m --host 127.0.0.1 --grpc --foo")]
    assert severities == sorted(severities, key=list(Severity).index)
    assert severity in severities


def test_words_are_plain_and_never_promise() -> None:
    words = [f for case in CASES for f in findings(case.line, env=case.env, behind_gateway=False)]
    words += [f for case in CASES for f in findings(case.line, env=case.env)]
    for finding in words:
        for text in (finding.why, finding.mend):
            assert not re.search(r"\b(un|in)?(safe|secure|leak)", text, re.IGNORECASE)
            assert text[0].isupper() or text.startswith("vLLM")
            assert text.endswith(".")
            assert not re.search(r"\.\s+[A-Z]", text), "one sentence"


@pytest.mark.parametrize(
    ("line", "connector"),
    [
        (f"--kv-transfer-config {WHOLE}", "A"),
        ("--kv_transfer_config={\\\"kv_connector\\\":\\\"A\\\"}", "A"),
        ("--kv-transfer-config.kv_connector A", "A"),
        ("--kv_transfer_config.kv_connector=A", "A"),
        ("--kv-transfer.kv_connector A", "A"),
        # The last one wins; a dotted one replaces a whole one, wherever it stands.
        ("--kv-transfer-config.kv_connector A --kv-transfer-config.kv_connector B", "B"),
        (f"--kv-transfer-config.kv_connector B --kv-transfer-config {WHOLE}", "B"),
        (f"--kv-transfer-config {WHOLE} --kv-transfer-config.kv_role kv_both", None),
        ("--kv-transfer-config '{\"kv_connector\":\"A\",\"kv_connector\":\"B\"}'", "B"),
        (f"--kv-transfer-config {WHOLE} --kv-transfer-config None", None),
    ],
)  # fmt: skip
def test_json_options_are_read_in_every_spelling(line: str, connector: str | None) -> None:
    parsed = parse_unverified_command_line(line)
    assert parsed.unclear == ()
    assert parsed.objects.get("kv-transfer-config", {}).get("kv_connector") == connector


def test_dotted_values_nest_and_lists_grow() -> None:
    parsed = parse_unverified_command_line(
        "--kv-transfer-config.a.b 1 --kv-transfer-config.a.c+ x,y --kv-transfer-config.a.c+=z"
        " --kv-transfer-config.d '{\"e\": 1}' --kv-transfer-config.d.f 2"
    )
    assert parsed.objects["kv-transfer-config"] == {
        "a": {"b": 1, "c": ["x", "y", "z"]},
        "d": {"e": 1, "f": 2},
    }


def test_spellings_of_options() -> None:
    parsed = parse_unverified_command_line(
        "m --enable_lora --no-enable-lora --host=a --host b --api-key k1 k2 -tp=4 -dp 2 -O3"
        " --middleware a.B --middleware=c.D --trust-remote --hf-token --device-mem 0.5"
    )
    assert parsed.unclear == ()
    assert parsed.value("host") == "b"
    assert parsed.values["api-key"] == ("k1", "k2")
    assert parsed.values["middleware"] == ("a.B", "c.D")
    assert parsed.value("tensor-parallel-size") == "4"
    assert parsed.value("gpu-memory-utilization") == "0.5"
    assert parsed.is_on("trust-remote-code")
    assert not parsed.is_on("enable-lora")


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("", Program.SERVER),
        ("m", Program.SERVER),
        ("serve m", Program.SERVER),
        ("/opt/bin/vllm serve m", Program.SERVER),
        ("python3.11 -m vllm.entrypoints.openai.api_server --model m", Program.SERVER),
        ("python -m vllm.entrypoints.launchers.grpc_server", Program.GRPC),
        ("vllm run-batch -i a", Program.BATCH),
        ("vllm bench serve", Program.OTHER),
        ("python server.py", Program.OTHER),
        ("python -m other.server", Program.OTHER),
    ],
)
def test_program_is_known_or_not_understood(line: str, program: Program) -> None:
    parsed = parse_unverified_command_line(line)
    assert parsed.program is program
    assert bool(parsed.unclear) == (program is Program.OTHER)


def test_variables_in_front_of_the_command_count_and_win() -> None:
    line = f"env VLLM_SERVER_DEV_MODE=1 vllm serve {QUIET}"
    assert "development-mode" in found(line, env="VLLM_SERVER_DEV_MODE=0")
    assert of_vllm({"VLLM_PORT": "1", "PYTHONHASHSEED": "0", "PATH": "/"}) == {
        "VLLM_PORT": "1",
        "PYTHONHASHSEED": "0",
    }


@pytest.mark.parametrize(
    "line",
    [
        "--enable",  # the beginning of several
        "-d 1",
        "--host",  # no value
        "--host --uds x",
        "--enable-lora=true",
        "--no-host x",
        "--kv-transfer-config '{'",
        "--kv-transfer-config '[]'",
        "--kv-transfer-config " + "[" * 5000,
        "--kv-transfer-config 7",
        "--kv-transfer-config.kv_role",
        "--kv-transfer-config" + ".a" * 5000 + " 1",
        "--kv-events-config yes",
        "--no-kv-events-config",
        "--allowed-origins x",
        "m n",
        "m $EXTRA",
        "m `cat options`",
        "m && rm x",
        "m | tee log",
        "m # --uds y",
        "-- --uds y m",
        "--help-me",
        "-",
        "--",
        "--=x",
    ],
)
def test_hostile_lines_are_answered_and_never_passed_over(line: str) -> None:
    got = found(f"{QUIET} {line}" if not line.startswith("m") else line)
    assert got.get("not-understood") is UNKNOWN or line == "--"


@pytest.mark.parametrize("line", ["m --host 'x", 'm "', "m \\", "x" * 70000])
def test_what_is_no_line_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        parse_unverified_command_line(line)


@pytest.mark.parametrize("pair", ["A", "=1", "a b=1", ""])
def test_what_is_no_assignment_is_refused(pair: str) -> None:
    with pytest.raises(UsageError):
        parse_assignments([pair])


def test_continued_lines_are_one_line() -> None:
    assert findings("vllm serve MODEL \\\n  --uds s \\\n  --language-model-only") == []


@pytest.mark.parametrize(
    "line",
    [
        "--api-key SECRET --host 127.0.0.1",
        "--api-key=SECRET=x",
        "--api-key a SECRET",
        "--api-kye SECRET",
        "--api-key=a SECRET SECRET",
        "--enable-lora m SECRET",
        "--hf-token SECRET --foo",
        "--otlp-traces-endpoint http://SECRET@host",
    ],
)
def test_no_finding_shows_a_key(line: str) -> None:
    every = findings(line, env="VLLM_API_KEY=SECRET", behind_gateway=False)
    assert every
    assert "SECRET" not in repr(every)


def test_settings_are_shown_in_one_printable_line() -> None:
    (finding,) = findings(f"{QUIET} --middleware 'a\x1b[31m\n{'b' * 500}'")
    assert finding.setting.isprintable()
    assert len(finding.setting) <= 80


def test_tables_agree() -> None:
    assert set(ALIASES.values()) <= set(OPTIONS)
    assert set(OPTIONS) >= JSON_OPTIONS
    assert len(OPTIONS) == 317
