"""The gateway's policy: tenants, levels, upstream. One TOML file, read strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kvward.errors import ConfigError
from kvward.keeping import Kept, KeptSettings, check_kept, read_policy_file
from kvward.terms import SharingLevel

_RESERVED = "kvward/"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_EMBEDDED = "unix:engine.sock"  # where nobody listens: commands on keys and stores ask no engine


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much and how long. Seconds and bytes."""

    max_body_bytes: int = 8 << 20
    connect_s: float = 5.0
    idle_s: float = 300.0


class KeyHolder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody and the hashes of their API keys."""

    name: str
    key_sha256: list[str]


class TenantPolicy(KeyHolder, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant and the hashes of its API keys."""


class OperatorPolicy(KeyHolder, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody who may use the engine's administrative routes, and the hashes of their keys."""


class EnginePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the operator says about the engine.

    Attributes:
        allow_reload: Let operators change adapters and weights under a running engine. Blocks
            that were computed before stay valid to vLLM's own prefix cache, so whoever sets this
            resets it after each change.
    """

    allow_reload: bool = False


class Levels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sharing level of each route. There is no built-in level.

    The first two must be named. A route of the others exists only where its level is named.
    """

    chat_completions: SharingLevel
    completions: SharingLevel
    responses: SharingLevel | None = None
    messages: SharingLevel | None = None
    embeddings: SharingLevel | None = None
    pooling: SharingLevel | None = None
    score: SharingLevel | None = None
    generate: SharingLevel | None = None
    decisions: SharingLevel | None = None


class SpanLevels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far leading parts of a prompt are shared, where an adapter inside the engine keeps spans.

    Attributes:
        system: Leading system and developer messages and tool definitions of chats; None shares
            them no further than the rest. What is said there about one user is shared with
            everybody of the level.
    """

    system: SharingLevel | None = None


class Policy(KeptSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway enforces.

    Attributes:
        upstream: "http://HOST:PORT" or "unix:PATH".
        upstream_key_env: Environment variable with the engine's own credential.
        operators: Whose keys open the administrative routes; without any, nobody's do.
    """

    upstream: str
    levels: Levels
    tenants: list[TenantPolicy]
    upstream_key_env: str | None = None
    operators: list[OperatorPolicy] = msgspec.field(default_factory=list)
    engine: EnginePolicy = msgspec.field(default_factory=EnginePolicy)
    limits: Limits = msgspec.field(default_factory=Limits)
    spans: SpanLevels = msgspec.field(default_factory=SpanLevels)

    @property
    def upstream_socket(self) -> Path | None:
        """Return the Unix socket of the upstream, if it listens on one."""
        kind, _, path = self.upstream.partition(":")
        return Path(path) if kind == "unix" else None


def read_policy(path: Path, *, upstream: object = None) -> Kept[Policy]:
    """Read a policy file.

    Args:
        upstream: In place of the file's, which may be empty: then it is the lab's engine.
    """
    values = read_policy_file(path)
    values["upstream"] = upstream or values.get("upstream") or _EMBEDDED
    return Kept(settings=make_policy(values, source=str(path)), folder=path.parent)


def make_policy(values: Mapping[str, object], *, source: str) -> Policy:
    """Check the values of a policy.

    Args:
        source: Names them in an error.
    Raises:
        ConfigError: They say something unknown or twice, or leave out what has no default.
    """
    try:
        policy = msgspec.convert(values, Policy)
    except msgspec.ValidationError as exc:
        hint = None
        if "levels" in str(exc) or "SharingLevel" in str(exc) or "completions" in str(exc):
            hint = (
                "Name a level for at least chat_completions and completions under [levels]: "
                "request, conversation, user or tenant. There is no default, because a default "
                "would decide who shares."
            )
        raise ConfigError(f"{source}: {exc}.", hint=hint) from exc
    check_kept(policy, source=source)
    _check(policy, source)
    return policy


def _check(policy: Policy, source: str) -> None:
    names = [tenant.name for tenant in policy.tenants]
    operators = [operator.name for operator in policy.operators]
    digests = [
        digest for holder in (*policy.tenants, *policy.operators) for digest in holder.key_sha256
    ]
    upstream = urlsplit(policy.upstream)
    speaks_http = upstream.scheme in {"http", "https"} and bool(upstream.hostname)
    for wrong, message, hint in [
        (not names, "there is no tenant.", "Add a [[tenants]] section."),
        ("" in names, "a tenant has no name.", None),
        (len(set(names)) < len(names), "two tenants have one name.", None),
        ("" in operators, "an operator has no name.", None),
        (len(set(operators)) < len(operators), "two operators have one name.", None),
        (
            any(not _SHA256.fullmatch(digest) for digest in digests),
            "a key_sha256 is not 64 lower-case hex digits.",
            "The policy holds the SHA-256 of a key, never the key: kvward gateway key",
        ),
        (
            len(set(digests)) < len(digests),
            "one key belongs to two tenants, to two operators, or to one of each.",
            "Give everybody a key of their own: kvward gateway key",
        ),
        (
            SharingLevel.PUBLIC in msgspec.structs.astuple(policy.levels),
            "a route cannot have the level public.",
            "Public state needs a registered prefix, which this version does not have.",
        ),
        (
            not speaks_http and policy.upstream_socket is None,
            f"upstream {policy.upstream!r} is neither http://HOST:PORT nor unix:PATH.",
            "Set upstream in the file, or give --upstream URL.",
        ),
        (
            policy.spans.system not in {None, SharingLevel.TENANT, SharingLevel.USER},
            "the span system can have the level tenant or user.",
            "Public state needs a registered prefix: [[public_prefixes]].",
        ),
        (
            any(name.startswith(_RESERVED) for name in names),
            f"a tenant's name begins with {_RESERVED}, which is reserved.",
            None,
        ),
        (policy.limits.max_body_bytes < 1, "max_body_bytes is below 1.", None),
    ]:
        if wrong:
            raise ConfigError(f"{source}: {message}", hint=hint)


_KEPT = [
    "",
    "[keyring]",
    'database = "sqlite:keyring.db"   # or "postgres:VARIABLE", for several replicas',
    "cache_s = 30        # what was erased is in use nowhere after cache_s and request_s,",
    "request_s = 300     # one after the other",
    "max_age_s = 86400   # stored state ends then",
    "",
    "[store]",
    'location = "file:store"',
    "capacity_bytes = 4294967296",
    "share_bytes = 536870912   # of every tenant; nobody else's load takes it",
]


def render_policy(
    *,
    deployment: str,
    tenants: Mapping[str, Sequence[str]],
    level: SharingLevel,
    upstream: str,
    keep: bool,
    operators: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Write a policy file.

    Args:
        tenants: For each name the SHA-256 of its keys.
        operators: The same for whoever may use the engine's administrative routes.
        level: Of both routes; chosen by the operator.
        keep: Whether keys are kept in a keyring and state in a store, beside the policy.
    """
    lines = [
        "# Policy of the kvward gateway. Everything that decides sharing is stated here.",
        f"deployment = {_quoted(deployment)}",
        'root_key_file = "root.key"',
        "# http://HOST:PORT or unix:PATH. Empty: the laboratory engine, or vLLM around us.",
        f"upstream = {_quoted(upstream)}",
        '# upstream_key_env = "ENGINE_API_KEY"   # the engine\'s own key, if it asks for one',
        "",
        "# request < conversation < user < tenant. What is put into a system prompt about one user",
        "# is shared with the whole tenant at level tenant.",
        "[levels]",
        f"chat_completions = {_quoted(level.value)}",
        f"completions = {_quoted(level.value)}",
        "# Routes that exist only with a level of their own: responses, messages, embeddings,",
        "# pooling, score, generate, decisions.",
        "",
        "# With the connector inside vLLM, leading system messages may be kept once for a tenant:",
        "# [spans]",
        '# system = "tenant"',
    ]
    lines += _KEPT if keep else []
    for section, holders in (("tenants", tenants), ("operators", operators or {})):
        for name, digests in holders.items():
            keys = ", ".join(_quoted(digest) for digest in digests)
            lines += ["", f"[[{section}]]", f"name = {_quoted(name)}", f"key_sha256 = [{keys}]"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    # JSON text is TOML text for everything but a few escapes that neither of us needs.
    return msgspec.json.encode(text).decode()
