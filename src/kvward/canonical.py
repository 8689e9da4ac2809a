"""Injective encoding of typed fields: the bytes under every hash, MAC, AAD and HKDF info.

Two different (label, fields) pairs never encode to the same bytes, so that
("ab", "c") and ("a", "bc"), text and bytes, absent and empty never meet.

```
encoding  = magic | label | count | field*
magic     = "kwc1"                                4 bytes
label     = u32 length | UTF-8                    never empty
count     = u32                                   number of fields
field     = tag (1 byte) | u32 length | payload
  tag 00  absent     payload empty
  tag 01  bytes      payload as it is
  tag 02  text       payload UTF-8
  tag 03  integer    payload ASCII decimal, "-" only before a non-zero number
  tag 04  boolean    payload 00 or 01
  tag 05  sequence   payload = count | field*
```

All integers of the framing are big-endian. The format is version 1 and is never edited;
`docs/spec/canonical-v1.md` restates it and `vectors/canonical-v1.json` pins it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

MAGIC = b"kwc1"
_MAX_LENGTH = 2**32 - 1
_U32 = struct.Struct(">I")

Field = None | bytes | str | int | bool | Sequence["Field"]


def encode(label: str, *fields: Field) -> bytes:
    """Encode a domain label and a list of fields injectively.

    Args:
        label: Domain separation label, non-empty, for example "kvward/scope-id/v1".
        fields: Absent, bytes, text, integers, booleans or (nested) lists and tuples of them.
    Returns:
        The canonical bytes. Equal if and only if label and fields are equal in type and value;
        a list and a tuple of equal items are the same sequence.
    Raises:
        ValueError: The label is empty, or a field is longer than 2^32 - 1 bytes.
        TypeError: A field has a type that is not listed.
    Source:
        docs/spec/canonical-v1.md
    """
    if not label:
        raise ValueError("A canonical encoding needs a label.")
    return b"".join((MAGIC, _framed(label.encode()), _sequence(fields)))


def _framed(payload: bytes) -> bytes:
    if len(payload) > _MAX_LENGTH:
        raise ValueError("A canonical field may hold at most 2^32 - 1 bytes.")
    return _U32.pack(len(payload)) + payload


def _sequence(fields: Sequence[Field]) -> bytes:
    return _U32.pack(len(fields)) + b"".join(_field(field) for field in fields)


def _field(field: Field) -> bytes:
    # NOTE: bool is tested before int, because True is an int in Python.
    match field:
        case None:
            tag, payload = 0, b""
        case bytes():
            tag, payload = 1, field
        case str():
            tag, payload = 2, field.encode()
        case bool():
            tag, payload = 4, b"\x01" if field else b"\x00"
        case int():
            tag, payload = 3, str(int(field)).encode("ascii")
        case list() | tuple():
            tag, payload = 5, _sequence(field)
        case _:
            raise TypeError(f"A canonical field cannot be a {type(field).__name__}.")
    return bytes([tag]) + _framed(payload)
