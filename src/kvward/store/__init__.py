"""WHERE sealed state lives: a port, backends behind it, and the one way to their bytes."""

from kvward.store.backend import (
    Backend,
    Bucket,
    BucketUsage,
    Capabilities,
    Entry,
    EntryName,
    Room,
)
from kvward.store.sealed import ScopedStore, SealedStore, StoreLimits

__all__ = [
    "Backend",
    "Bucket",
    "BucketUsage",
    "Capabilities",
    "Entry",
    "EntryName",
    "Room",
    "ScopedStore",
    "SealedStore",
    "StoreLimits",
]
