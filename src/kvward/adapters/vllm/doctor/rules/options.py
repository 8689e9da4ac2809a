"""Options and variables that are judged by being on or given: one row for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvward.adapters.vllm.doctor.finding import Finding, Severity
from kvward.adapters.vllm.doctor.setup import Reach, Setup, reach_of_host

_DEFEATS, _WEAKENS, _UNKNOWN = Severity.DEFEATS, Severity.WEAKENS, Severity.UNKNOWN
_AWAY = "Leave it away."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One rule.

    Attributes:
        names: Options or variables; each that is on or given is a finding.
        bare: Severity when callers reach the engine by themselves.
        guarded: Severity behind gateway or middleware. None: nothing to say then.
    """

    id: str
    names: tuple[str, ...]
    bare: Severity
    guarded: Severity | None
    why: str
    mend: str = _AWAY


_ROWS = (
    _Row(
        id="development-mode",
        names=("VLLM_SERVER_DEV_MODE",),
        bare=_DEFEATS,
        guarded=_WEAKENS,
        why="Routes that call into the engine, replace weights, stop requests and empty caches "
        "stand beside the public ones, without a key.",
    ),
    _Row(
        id="pickled-messages",
        names=("VLLM_ALLOW_INSECURE_SERIALIZATION",),
        bare=_DEFEATS,
        guarded=_WEAKENS,
        why="Whoever can send the engine a message can run code where all tenants' state is.",
    ),
    _Row(
        id="responses-store",
        names=("VLLM_ENABLE_RESPONSES_API_STORE",),
        bare=_DEFEATS,
        guarded=_WEAKENS,
        why="Stored responses have no owner: whoever names one reads and continues it.",
    ),
    _Row(
        id="routes-without-salt",
        names=("VLLM_ENABLE_COHERE_API",),
        bare=_DEFEATS,
        guarded=_WEAKENS,
        why="Requests on these routes carry no salt, so all of them are one scope.",
    ),
    _Row(
        id="token-routes",
        names=("enable-scale-out", "tokens-only"),
        bare=_DEFEATS,
        guarded=_WEAKENS,
        why="Routes open that take token ids and transfer parameters from callers and stop "
        "requests by id.",
    ),
    _Row(
        id="operator-routes",
        names=("enable-fault-tolerance",),
        bare=_DEFEATS,
        guarded=_WEAKENS,
        why="A route opens that acts on the engine for all tenants.",
    ),
    _Row(
        id="weights-change",
        names=("weight-transfer-config",),
        bare=_DEFEATS,
        guarded=_WEAKENS,
        why="Weights can change under cached state, which is not named by them.",
        mend="Leave it away, and start anew to change weights.",
    ),
    _Row(
        id="request-ids",
        names=("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION",),
        bare=_DEFEATS,
        guarded=_WEAKENS,
        why="Two requests with one id are one request to the engine, and callers choose ids.",
    ),
    _Row(
        id="request-id-headers",
        names=("enable-request-id-headers",),
        bare=_WEAKENS,
        guarded=None,
        why="The id that a caller sends is given back, so two tenants may hold the same one.",
    ),
    _Row(
        id="cached-token-counts",
        names=("enable-prompt-tokens-details",),
        bare=_WEAKENS,
        guarded=None,
        why="Every answer says how many tokens were found in the cache, whoever put them there.",
        mend="Leave it away, or let the ward decide the scope first.",
    ),
    _Row(
        id="load-route",
        names=("enable-server-load-tracking",),
        bare=_WEAKENS,
        guarded=None,
        why="A route without a key says how many requests are running.",
    ),
    _Row(
        id="request-times",
        names=("enable-per-request-metrics",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="Answers say how long a request waited and computed, finer than a network shows it.",
    ),
    _Row(
        id="priorities",
        names=("scheduling-policy",),
        bare=_WEAKENS,
        guarded=None,
        why="Callers may write the priority that lets them overtake and displace others.",
        mend="Use fcfs, the default.",
    ),
    _Row(
        id="remote-code",
        names=("trust-remote-code",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="Code that comes with the model runs where all tenants' state is.",
        mend="Leave it away, or pin --revision and --code-revision and read the code.",
    ),
    _Row(
        id="foreign-code",
        names=(
            "io-processor-plugin",
            "logits-processors",
            "model-class-overrides",
            "reasoning-parser-plugin",
            "scheduler-cls",
            "tool-parser-plugin",
            "worker-cls",
            "worker-extension-cls",
        ),
        bare=_UNKNOWN,
        guarded=_UNKNOWN,
        why="It puts code into the engine that was not examined.",
    ),
    _Row(
        id="tool-server",
        names=("tool-server",),
        bare=_UNKNOWN,
        guarded=_UNKNOWN,
        why="The server calls tools for all tenants, and what those keep was not examined.",
    ),
    _Row(
        id="embeddings-as-prompt",
        names=("enable-prompt-embeds", "enable-mm-embeds"),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="Callers send vectors in place of tokens, and not all that decides their state is in "
        "the block hash.",
    ),
    _Row(
        id="template-from-caller",
        names=("trust-request-chat-template",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="The caller's template runs in the server and decides where shared prefixes end.",
    ),
    _Row(
        id="trace-replay",
        names=("enable-trace-replay",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="A caller can force the tokens of an answer, so an answer is no evidence of its state.",
    ),
    _Row(
        id="local-media",
        names=("allowed-local-media-path",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="Callers read files of the server below this path.",
    ),
    _Row(
        id="media-on-disk",
        names=("VLLM_MEDIA_CACHE",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="Media that one tenant's request fetched is kept on disk and given to the next tenant "
        "that names its address.",
    ),
    _Row(
        id="requests-logged",
        names=("enable-log-requests",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="The log holds parameters of all tenants' requests, and at level DEBUG their prompts "
        "and salts.",
    ),
    _Row(
        id="answers-logged",
        names=("enable-log-outputs", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE"),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="The log holds answers to all tenants.",
    ),
    _Row(
        id="traces",
        names=("otlp-traces-endpoint",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="Ids, lengths and times of all tenants' requests are sent to a collector.",
        mend="Leave it away, or use a collector that only the operator reads.",
    ),
    _Row(
        id="log-settings-in-a-file",
        names=("log-config-file", "VLLM_LOGGING_CONFIG_PATH"),
        bare=_UNKNOWN,
        guarded=_UNKNOWN,
        why="What is logged, and where to, is in a file that is not read here.",
    ),
    _Row(
        id="speculation-counts",
        names=("per-request-spec-decode-metrics",),
        bare=_WEAKENS,
        guarded=_WEAKENS,
        why="Answers say how many drafted tokens were accepted, which tells what the drafts knew.",
    ),
    _Row(
        id="external-routing",
        names=(
            "data-parallel-external-lb",
            "data-parallel-hybrid-lb",
            "data-parallel-multi-port-external-lb",
            "data-parallel-rank",
        ),
        bare=_UNKNOWN,
        guarded=_UNKNOWN,
        why="Several servers answer and a router chooses among them, and whether each is only "
        "reached through the gateway cannot be seen here.",
        mend="Put the gateway in front of the router, and let nobody else reach router or servers.",
    ),
)

_HARMLESS_VALUES = {
    ("scheduling-policy", "fcfs"),
    ("per-request-spec-decode-metrics", "none"),
    ("worker-cls", "auto"),
}


def find(setup: Setup) -> Iterator[Finding]:
    """Judge row by row, then what needs a look at a value."""
    for row in _ROWS:
        severity = row.guarded if setup.is_guarded else row.bare
        if severity is None:
            continue
        for name in row.names:
            setting = _given(setup, name)
            if setting is not None:
                yield Finding(
                    id=row.id, severity=severity, setting=setting, why=row.why, mend=row.mend
                )
    yield from _log_level(setup)
    yield from _profiler(setup)
    yield from _other_machines(setup)


def _given(setup: Setup, name: str) -> str | None:
    line, environment = setup.command_line, setup.environment
    if name.isupper():
        if name in _TEXT_VARIABLES:
            return environment.shown(name) if environment.text(name) else None
        return environment.shown(name) if environment.is_on(name) else None
    if name in line.switches:
        return f"--{name}" if line.is_on(name) else None
    value = line.value(name)
    if value is None or (name, value) in _HARMLESS_VALUES:
        return None
    return line.shown(name)


_TEXT_VARIABLES = frozenset({"VLLM_MEDIA_CACHE", "VLLM_LOGGING_CONFIG_PATH"})


def _log_level(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    config = line.objects.get("logging-config", {})
    if config.get("pylogging_config_file") is not None:
        yield Finding(
            id="log-settings-in-a-file",
            severity=_UNKNOWN,
            setting="--logging-config pylogging_config_file",
            why="What is logged, and where to, is in a file that is not read here.",
            mend=_AWAY,
        )
    level = line.value("log-level") or config.get("log_level")
    shown = f"--log-level {level}"
    if level is None:
        level = setup.environment.text("VLLM_LOGGING_LEVEL")
        shown = setup.environment.shown("VLLM_LOGGING_LEVEL")
    if level is not None and str(level).upper() in {"DEBUG", "NOTSET"}:
        yield Finding(
            id="debug-log",
            severity=_WEAKENS,
            setting=shown,
            why="The log holds what tenants sent, block by block, and how it was transferred.",
            mend="Log at INFO.",
        )


def _profiler(setup: Setup) -> Iterator[Finding]:
    profiler = setup.command_line.objects.get("profiler-config", {}).get("profiler")
    if profiler is not None:
        yield Finding(
            id="profiler",
            severity=setup.severity(bare=_DEFEATS, guarded=_WEAKENS),
            setting=f"--profiler-config profiler={profiler}",
            why="Routes without a key start and stop a profile of all tenants' requests.",
            mend=_AWAY,
        )


def _other_machines(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    for name in ("data-parallel-address", "master-addr"):
        host = line.value(name)
        if host is not None and reach_of_host(host) is Reach.NETWORK:
            yield Finding(
                id="engine-network",
                severity=_WEAKENS,
                setting=line.shown(name),
                why="Prompts and state of all tenants go between machines in clear, to ports that "
                "ask for no key.",
                mend="Keep these machines in a network of their own.",
            )
