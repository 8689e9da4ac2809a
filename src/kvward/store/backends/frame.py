"""The plain bytes in front of a sealed block in a bucket, for those who sweep.

```
 4      4          8               8            the rest
kws3  version 1  expires_unix_s  put_unix_ns  sealed bytes     big-endian
```

Not authenticated: whoever can write to the bucket can write this too, and can as well delete.
Format version 1, never edited.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_LAYOUT = struct.Struct(">4sIQQ")
_MAGIC = b"kws3"
_VERSION = 1

FRAME_BYTES = _LAYOUT.size


class Frame(NamedTuple):
    """When an entry expires, and when it was put."""

    expires_unix_s: int
    put_unix_ns: int


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
