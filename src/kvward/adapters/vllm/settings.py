"""What an operator tells the connector, under `kv_connector_extra_config`. Read strictly."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import msgspec

from kvward.errors import ConfigError
from kvward.keeping import POLICY_VARIABLE


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the connector. Only `policy` has no default: nothing else decides sharing.

    Attributes:
        policy: The gateway's policy file, of which deployment, root key, [keyring], [store] and
            [[public_prefixes]] are read. Taken from KVWARD_POLICY when left out.
        lookup_threads: Look-ups at once; one tenant gets half of them at most.
        lookup_ms: Longest a request waits to hear what is stored; then it is computed.
        transfer_threads: Loads and saves at once, each.
        load_s: Longest a load may take; then what it would have brought is computed.
        pending_bytes: Of copies that wait to be sealed; what comes on top is not kept.
        events_folder: Where each process writes what it counted, as JSON; None writes nothing.
        adapters_immutable: The operator vouches that files of adapters (LoRA) are never changed
            once they are there. Without it, adapters newer than the engine are not cached.
        untested_platform: Run although the engine's device was never tested.
    """

    policy: str
    lookup_threads: int = 8
    lookup_ms: float = 20.0
    transfer_threads: int = 2
    load_s: float = 1.0
    pending_bytes: int = 256 << 20
    events_folder: str | None = None
    adapters_immutable: bool = False
    untested_platform: bool = False


def make_settings(values: Mapping[str, object]) -> ConnectorSettings:
    """Check settings.

    Raises:
        ConfigError: One is unknown, missing, or out of range.
    """
    given = {"policy": os.environ.get(POLICY_VARIABLE)} | dict(values)
    if not given["policy"]:
        raise ConfigError(
            "The connector does not know its policy.",
            hint=f"Set {POLICY_VARIABLE}, or policy in kv_connector_extra_config.",
        )
    try:
        settings = msgspec.convert(given, ConnectorSettings)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"kv_connector_extra_config: {exc}.") from exc
    for name in ("lookup_threads", "lookup_ms", "transfer_threads", "load_s", "pending_bytes"):
        if not 0 < getattr(settings, name) < math.inf:
            raise ConfigError(f"kv_connector_extra_config: {name} is not a number above 0.")
    return settings
