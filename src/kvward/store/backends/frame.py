"""The plain bytes in front of a sealed block in a store that has no expiry, for those who sweep.

```
 4      4          8               8            the rest
kwfr  version 1  expires_unix_s  put_unix_ns  sealed bytes     big-endian
```

Not authenticated: whoever can write to the store can write this too, and can as well delete.
Format version 1, never edited.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

_LAYOUT = struct.Struct(">4sIQQ")
_MAGIC = b"kwfr"
_VERSION = 1

FRAME_BYTES = _LAYOUT.size


class Frame(NamedTuple):
    """When an entry expires, and when it was put."""

    expires_unix_s: int
    put_unix_ns: int


class Framed(NamedTuple):
    """An entry as a sweep finds it: its key, its sealed bytes, its frame."""

    key: str
    num_bytes: int
    frame: Frame


class Surplus(NamedTuple):
    """Keys of what is past its time, and of what a tenant has beyond its share."""

    expired: list[str]
    beyond_share: list[str]


class Swept(NamedTuple):
    """How many entries a sweep removed: past their time, and beyond their tenant's share."""

    expired_entries: int
    evicted_entries: int


# Expired for ever, and older than all others.
UNREADABLE = Frame(expires_unix_s=0, put_unix_ns=0)


def encode_frame(frame: Frame) -> bytes:
    """Write a frame, 24 bytes. An expiry before 1970 is written as 0."""
    return _LAYOUT.pack(_MAGIC, _VERSION, max(0, frame.expires_unix_s), frame.put_unix_ns)


def parse_unverified_frame(data: memoryview) -> Frame | None:
    """Read the frame at the beginning of an object, None if there is none. [untrusted]"""
    if len(data) < FRAME_BYTES:
        return None
    magic, version, expires_unix_s, put_unix_ns = _LAYOUT.unpack_from(data)
    return Frame(expires_unix_s, put_unix_ns) if (magic, version) == (_MAGIC, _VERSION) else None


def find_surplus(entries: Iterable[Framed], *, now_unix_s: float, share_bytes: int) -> Surplus:
    """Tell what of one tenant's entries has to go: first what is past its time, then the oldest."""
    surplus = Surplus(expired=[], beyond_share=[])
    alive = []
    for entry in entries:
        if entry.frame.expires_unix_s > now_unix_s:
            alive.append(entry)
        else:
            surplus.expired.append(entry.key)
    excess = sum(entry.num_bytes for entry in alive) - share_bytes
    for entry in sorted(alive, key=lambda entry: (entry.frame.put_unix_ns, entry.key)):
        if excess <= 0:
            break
        excess -= entry.num_bytes
        surplus.beyond_share.append(entry.key)
    return surplus


class PutTimes:
    """Times for frames: later puts of one process are younger even where the clock stands still."""

    def __init__(self, now_unix_s: Callable[[], float]) -> None:
        self._now_unix_s = now_unix_s
        self._lock = threading.Lock()
        self._next_ns = 0

    def draw(self, count: int) -> range:
        """Return so many times, in nanoseconds since 1970."""
        with self._lock:
            first = max(self._next_ns, int(self._now_unix_s() * 1e9))
            self._next_ns = first + count
        return range(first, first + count)
