"""What a policy says about where keys and state are kept. Read strictly.

The gateway and the adapters inside engines read these from one file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kvward.errors import ConfigError

POLICY_VARIABLE = "KVWARD_POLICY"
"""Environment variable with the policy's path, for what runs inside an engine."""


class Pkcs11Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A root key that never leaves a PKCS#11 token: a hardware module, or SoftHSM.

    Attributes:
        module: Path of the token's library.
        token_label: Which token.
        key_label: An AES-256 key in it.
        pin_env: Environment variable with the user PIN.
    """

    module: str
    token_label: str
    key_label: str
    pin_env: str


class KeyringPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The durable keyring.

    Attributes:
        database: "sqlite:FILE", relative to the policy file, or "postgres:VARIABLE" with the name
            of the environment variable that holds the connection string.
        cache_s: How long a replica goes on without asking; with `request_s` the bound of erasures.
        request_s: Longest request.
        max_age_s: Age at which stored state ends.
        timeout_s: Longest wait for the database.
    """

    database: str
    cache_s: int
    request_s: int
    max_age_s: int
    timeout_s: float = 2.0


class StorePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The store of sealed state.

    Attributes:
        location: "memory:", "file:FOLDER" (relative to the policy file), "valkey://HOST:PORT",
            "valkey-cluster://HOST:PORT", "s3://BUCKET/PREFIX?region=REGION", or "env:VARIABLE"
            with one of them.
        capacity_bytes: Of all tenants together.
        share_bytes: What every tenant is protected in.
        equivalences: File, relative to the policy file, with the operator's signed list of models
            whose state may be read as another's; see `kvward store equate`.
        durability: "none", "data" or "full": what a file store flushes.
        clock_skew_s: How far the clocks of replicas may differ.
        retry_after_s: How long a store that did not answer is left alone.
        timeout_s: Longest wait for a store on the network.
        server_never_evicts: Vouch for a Valkey server that does not tell its eviction policy.
    """

    location: str
    capacity_bytes: int
    share_bytes: int
    equivalences: str | None = None
    durability: str = "none"
    clock_skew_s: int = 5
    retry_after_s: float = 1.0
    timeout_s: float = 1.0
    server_never_evicts: bool = False

    @property
    def shown_location(self) -> str:
        """Return the location without the name and password that may stand in it."""
        before, at, place = self.location.rpartition("@")
        scheme, separator, _ = before.partition("://")
        return f"{scheme}{separator}{place}" if at and separator else place


class PublicPrefixPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prefix that everybody may share, because the operator wrote it.

    Attributes:
        name: Of the operator's choice.
        token_ids_file: JSON list of token ids, relative to the policy file.
    """

    name: str
    token_ids_file: str


class KeptSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What gateway and adapters have in common.

    Attributes:
        deployment: Name of the installation, part of every scope.
        root_key_file: Relative to the policy file. Exactly one of the three roots is named.
        root_key_env: Environment variable with the root key in base64.
        root_pkcs11: A token that holds the root key.
        keyring: Where keys are kept; None derives them from the root key, and nothing can be
            rotated, erased or stored.
        store: Where state is kept outside engines; None keeps none.
        public_prefixes: The only state that is shared wider than a tenant.
        contract: What is promised to others, a file relative to the policy file. What runs with
            this policy honours it or does not start.
    """

    deployment: str
    root_key_file: str | None = None
    root_key_env: str | None = None
    root_pkcs11: Pkcs11Policy | None = None
    keyring: KeyringPolicy | None = None
    store: StorePolicy | None = None
    public_prefixes: list[PublicPrefixPolicy] = msgspec.field(default_factory=list)
    contract: str | None = None


def read_policy_file(path: Path) -> dict[str, object]:
    """Read a policy file without judging it.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(
            f"The policy {path} cannot be read: {exc.strerror}.",
            hint="Write one with: kvward gateway init DIR --tenant NAME --level LEVEL",
        ) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The policy {path} is not TOML: {exc}.") from exc


def select_kept(values: Mapping[str, object], *, source: str) -> KeptSettings:
    """Check what a policy says about keys and state; the rest of it is the gateway's.

    Args:
        source: Names the policy in an error.
    Raises:
        ConfigError: Something is unknown, missing or contradictory.
    """
    mine = {name: values[name] for name in KeptSettings.__struct_fields__ if name in values}
    try:
        settings = msgspec.convert(mine, KeptSettings)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{source}: {exc}.") from exc
    check_kept(settings, source=source)
    return settings


def check_kept(settings: KeptSettings, *, source: str) -> None:
    """Refuse settings that do not fit together.

    Raises:
        ConfigError: They do not.
    """
    roots = (settings.root_key_file, settings.root_key_env, settings.root_pkcs11)
    num_roots = sum(root is not None for root in roots)
    prefixes = [prefix.name for prefix in settings.public_prefixes]
    for wrong, message, hint in [
        (not settings.deployment, "deployment is empty.", "Name the installation."),
        (
            num_roots != 1,
            f"{num_roots} root keys are named.",
            "Name one of root_key_file, root_key_env and root_pkcs11.",
        ),
        (
            settings.root_pkcs11 is not None and settings.keyring is None,
            "a root key in a token wraps the keys of a keyring, and there is no [keyring].",
            "Add a [keyring] section.",
        ),
        (
            settings.store is not None and settings.keyring is None,
            "there is a [store] and no [keyring].",
            "Stored state is sealed with keys of the keyring: add a [keyring] section.",
        ),
        (
            "" in prefixes or len(set(prefixes)) < len(prefixes),
            "public prefixes need names, each its own.",
            None,
        ),
    ]:
        if wrong:
            raise ConfigError(f"{source}: {message}", hint=hint)
