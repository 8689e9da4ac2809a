"""The sections of a policy that say where keys and state are kept. Read strictly."""

from __future__ import annotations

import msgspec


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
