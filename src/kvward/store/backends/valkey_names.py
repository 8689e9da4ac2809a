"""Names of keys in Valkey. The braces make all keys of a tenant fall into one slot.

```
kw1:{<tenant>}:<scope>:<name>   an entry, with its expiry
kw1:{<tenant>}:age              members <scope>:<name>, oldest first
kw1:{<tenant>}:due              the same members by the time they expire
kw1:{<tenant>}:len              bytes of each
kw1:{<tenant>}:in:<scope>       the members of one scope, oldest first
kw1:{<tenant>}:use              bytes kept, entries evicted, order of the last one
kw1:{<tenant>}:new:<random>     an entry that is being put; gone by itself after a minute
```

All pseudonyms are hexadecimal. The scripts derive these names too; see `valkey_scripts`.
"""

from __future__ import annotations

import re
import secrets

from kvward.store.backend import EntryName

EVERY_USE_KEY = "kw1:{*}:use"
_USE_KEY = re.compile(rb"kw1:\{([0-9a-f]{32})\}:use")


def entry_key(name: EntryName) -> str:
    """Return the key of an entry."""
    return _root(name.tenant) + member_of(name)


def member_of(name: EntryName) -> str:
    """Return how the indexes of a tenant call an entry."""
    return f"{name.scope.hex()}:{name.name.hex()}"


def use_key(tenant: bytes) -> str:
    """Return the key of a tenant's accounts, from which scripts derive all others."""
    return f"{_root(tenant)}use"


def new_staging_key(tenant: bytes) -> str:
    """Draw a key for an entry that is being put."""
    return f"{_root(tenant)}new:{secrets.token_hex(16)}"


def parse_use_key(key: bytes) -> bytes | None:
    """Return the tenant of a key of accounts, None if it is another key. [untrusted]"""
    match = _USE_KEY.fullmatch(key)
    return None if match is None else bytes.fromhex(match[1].decode())


def _root(tenant: bytes) -> str:
    return f"kw1:{{{tenant.hex()}}}:"
