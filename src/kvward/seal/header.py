"""The header of a sealed block: 64 plain bytes in front of the ciphertext.

```
 0  4  magic             "kwsb"
 4  1  version           1
 5  1  suite             1 = XAES-256-GCM
 6  2  reserved          0
 8  8  key id            which seal key of the scope, a pseudonym of the key
16  8  epoch             of the key
24  8  created           seconds since 1970-01-01 UTC
32  8  plain bytes       length of the plaintext
40 24  nonce
```

Integers are unsigned and big-endian. Nothing here names a tenant or a model. Every byte is
authenticated: the first 40 as associated data, the nonce as the cipher's own.

Source: docs/spec/sealed-block-v1.md, section 2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from kvward.errors import OpenError
from kvward.seal.xaes import NONCE_BYTES, TAG_BYTES, Buffer

MAGIC = b"kwsb"
VERSION = 1
KEY_ID_BYTES = 8
BOUND_BYTES = 40
HEADER_BYTES = BOUND_BYTES + NONCE_BYTES
OVERHEAD_BYTES = HEADER_BYTES + TAG_BYTES
MAX_PLAIN_BYTES = 2**31 - 1
_FIELDS = struct.Struct(">4sBBH8sQQQ24s")


class Suite(IntEnum):
    """Algorithm of a sealed block, by its byte in the header."""

    XAES_256_GCM = 1


class OpenRefusal(StrEnum):
    """Why a sealed block did not open. For counters inside, never for a caller."""

    TOO_SHORT = "too-short"
    NOT_A_BLOCK = "not-a-block"
    VERSION = "version"
    SUITE = "suite"
    RESERVED = "reserved"
    LENGTH = "length"
    KEY = "other-key"
    EPOCH = "other-epoch"
    EXPIRED = "expired"
    FROM_THE_FUTURE = "from-the-future"
    NOT_AUTHENTIC = "not-authentic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a header says.

    Attributes:
        suite: Algorithm.
        key_id: 8 bytes.
        epoch: 0 <= epoch < 2^63.
        created_unix_s: When it was sealed.
        plain_bytes: Length of the plaintext.
        nonce: 24 bytes.
    """

    suite: Suite
    key_id: bytes
    epoch: int
    created_unix_s: int
    plain_bytes: int
    nonce: bytes

    def to_bytes(self) -> bytes:
        """Return the 64 bytes."""
        return _FIELDS.pack(
            MAGIC,
            VERSION,
            self.suite,
            0,
            self.key_id,
            self.epoch,
            self.created_unix_s,
            self.plain_bytes,
            self.nonce,
        )


def refusal(reason: OpenRefusal) -> OpenError:
    """Return the one error for everything that does not open."""
    return OpenError("The sealed block does not open.", reason=reason.value)


def parse_unverified_header(sealed: Buffer) -> Header:
    """Read a header; nothing it says is authentic yet.

    Args:
        sealed: A whole sealed block, any bytes. [untrusted]
    Raises:
        OpenError: It is not a sealed block of this version, or its length is not what it says.
    """
    if len(sealed) < OVERHEAD_BYTES:
        raise refusal(OpenRefusal.TOO_SHORT)
    magic, version, suite, reserved, key_id, epoch, created, plain_bytes, nonce = (
        _FIELDS.unpack_from(sealed)
    )
    if magic != MAGIC:
        raise refusal(OpenRefusal.NOT_A_BLOCK)
    if version != VERSION:
        raise refusal(OpenRefusal.VERSION)
    if suite != Suite.XAES_256_GCM:
        raise refusal(OpenRefusal.SUITE)
    if reserved != 0:
        raise refusal(OpenRefusal.RESERVED)
    if plain_bytes != len(sealed) - OVERHEAD_BYTES or plain_bytes > MAX_PLAIN_BYTES:
        raise refusal(OpenRefusal.LENGTH)
    return Header(
        suite=Suite(suite),
        key_id=key_id,
        epoch=epoch,
        created_unix_s=created,
        plain_bytes=plain_bytes,
        nonce=nonce,
    )
