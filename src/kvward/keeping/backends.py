"""Open the backend of a store that a policy names. Each needs its own extra."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, urlsplit

from kvward.errors import ConfigError
from kvward.keeping.sections import StorePolicy
from kvward.store import Backend, Room

_WAYS = (
    "memory:, file:FOLDER, valkey://HOST:PORT, valkeys://HOST:PORT, valkey-cluster://HOST:PORT, "
    "valkeys-cluster://HOST:PORT, s3://BUCKET/PREFIX?region=REGION&endpoint=URL, "
    "or env:VARIABLE with one of them"
)
_CLUSTER = "-cluster"


def open_backend(section: StorePolicy, folder: Path) -> Backend:
    """Open the backend that a policy names.

    Args:
        folder: What a relative folder is relative to.
    Raises:
        ConfigError: The location is not understood, or the room is not possible.
    """
    try:
        room = Room(capacity_bytes=section.capacity_bytes, share_bytes=section.share_bytes)
    except ValueError as exc:
        raise ConfigError(f"The room of the store is not possible: {exc}") from exc
    location = resolve_location(section)
    match location.scheme:
        case "memory":
            from kvward.store.backends.memory import MemoryBackend

            return MemoryBackend(room)
        case "file" if location.path:
            return _open_folder(section, room, folder / location.path)
        case "valkey" | "valkeys" | "valkey-cluster" | "valkeys-cluster" if location.netloc:
            from kvward.store.backends.valkey import ValkeyBackend

            cluster = location.scheme.endswith(_CLUSTER)
            scheme = location.scheme.removesuffix(_CLUSTER)
            return ValkeyBackend(
                location._replace(scheme=scheme).geturl(),
                room,
                cluster=cluster,
                timeout_s=section.timeout_s,
                server_never_evicts=section.server_never_evicts,
            )
        case "s3" if location.netloc:
            return _open_bucket(section, room, location)
    raise ConfigError(
        f"The store {section.shown_location!r} is not understood.",
        hint=f"Use {_WAYS}.",
    )


def resolve_location(section: StorePolicy) -> SplitResult:
    """Return where a store is, from the environment if the policy says so. [secret]"""
    text = section.location
    if text.startswith("env:"):
        # So that a password need not stand in the policy.
        text = os.environ.get(text.removeprefix("env:"), "")
    return urlsplit(text)


def _open_folder(section: StorePolicy, room: Room, folder: Path) -> Backend:
    from kvward.store.backends.filesystem import Durability, FilesystemBackend

    try:
        durability = Durability(section.durability)
    except ValueError:
        raise ConfigError(
            f"The durability {section.durability!r} is not understood.",
            hint="Use none, data or full.",
        ) from None
    return FilesystemBackend(folder, room, durability=durability)


def _open_bucket(section: StorePolicy, room: Room, location: SplitResult) -> Backend:
    from kvward.store.backends.s3 import S3Backend
    from kvward.store.backends.s3_bucket import connect_s3

    query = parse_qs(location.query)
    region = query.pop("region", [""])[-1]
    endpoint = query.pop("endpoint", [None])[-1]
    if query or not region:
        raise ConfigError(
            "The S3 store needs a region, and takes nothing but region and endpoint.",
            hint="For example s3://BUCKET/PREFIX?region=eu-central-1",
        )
    bucket = connect_s3(
        location.netloc, region=region, endpoint=endpoint, timeout_s=section.timeout_s
    )
    return S3Backend(bucket, room, prefix=location.path.strip("/") or "kvward")
